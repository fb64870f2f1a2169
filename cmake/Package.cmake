# The Debian package: `cpack` in the build folder, or tools/package.sh, which also builds. It has what the
# component `serving` has, under /usr, and the service of deploy/systemd. Its dependencies are found by
# dpkg-shlibdeps in what the programs load, so it is for the distribution that it was built on.
set(folder ${PROJECT_BINARY_DIR}/package)

# The repository's unit is for programs in /usr/local, and its settings name a model of yours; without
# one the demo model, which is in the package, is served.
function(mneme_package_file source target pattern replacement)
  file(READ ${PROJECT_SOURCE_DIR}/${source} text)
  string(REPLACE "${pattern}" "${replacement}" changed "${text}")
  if(changed STREQUAL text)
    message(FATAL_ERROR "${source} has no ${pattern} to replace for the package")
  endif()
  file(CONFIGURE OUTPUT ${folder}/${target} CONTENT "${changed}" @ONLY)
  set_property(DIRECTORY ${PROJECT_SOURCE_DIR} APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS
               ${PROJECT_SOURCE_DIR}/${source})
endfunction()
mneme_package_file(deploy/systemd/mneme-server.service mneme-server.service /usr/local/ /usr/)
mneme_package_file(deploy/systemd/mneme.env mneme.env "\nMNEME_MODEL=" "\n#MNEME_MODEL=")

# Below the prefix, /usr; /etc alone is not.
install(FILES ${folder}/mneme-server.service DESTINATION lib/systemd/system COMPONENT service)
install(FILES deploy/systemd/mneme.sysusers DESTINATION lib/sysusers.d RENAME mneme.conf
        COMPONENT service)
install(FILES ${folder}/mneme.env DESTINATION /etc/mneme COMPONENT service)

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME mneme)
set(CPACK_PACKAGE_VENDOR Mneme)
set(CPACK_PACKAGE_CONTACT "The Mneme authors")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY ${PROJECT_DESCRIPTION})
set(CPACK_PACKAGE_DESCRIPTION
"Serves language models whose memory has a fixed size (Mixture-of-Memories, Gated DeltaNet) over
gRPC and an OpenAI-compatible HTTP interface. Sessions have names and remember. Has the server, the
command line and a small demo model, and a service for systemd that is not enabled by itself.")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_COMPONENTS_ALL serving service)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_COMPONENTS_GROUPING ALL_COMPONENTS_IN_ONE)
set(CPACK_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ
    GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION net)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS ${PROJECT_BINARY_DIR}/lib)
set(CPACK_DEBIAN_PACKAGE_DEPENDS adduser)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
set(CPACK_DEBIAN_PACKAGE_CONTROL_EXTRA
    ${PROJECT_SOURCE_DIR}/deploy/debian/conffiles ${PROJECT_SOURCE_DIR}/deploy/debian/postinst
    ${PROJECT_SOURCE_DIR}/deploy/debian/prerm ${PROJECT_SOURCE_DIR}/deploy/debian/postrm)
include(CPack)
