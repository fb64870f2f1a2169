# Mneme's server, for CPUs by default; docs/deployment.md tells how to run it.
#
#   docker build -t mneme .
#
# For NVIDIA GPUs (needs a driver for CUDA 13 on the host that runs it):
#
#   docker build -t mneme:0.1.0-cuda --build-arg MNEME_CUDA=ON \
#     --build-arg BUILD_IMAGE=nvidia/cuda:13.0.1-devel-ubuntu24.04 \
#     --build-arg RUNTIME_IMAGE=nvidia/cuda:13.0.1-base-ubuntu24.04 .
#
# Both images have to be of one distribution, Debian 12 or a relative that has the packages of
# tools/setup.sh, as the runtime's libraries are the packages that the build linked.
ARG BUILD_IMAGE=docker.io/library/debian:bookworm-slim
ARG RUNTIME_IMAGE=docker.io/library/debian:bookworm-slim

FROM ${BUILD_IMAGE} AS build
WORKDIR /src
COPY tools/setup.sh tools/setup.sh
RUN tools/setup.sh --build-only

COPY . .
ARG MNEME_CUDA=OFF
ARG CUDA_ARCHITECTURES=80-virtual;90a-real
# Compilers at once; each takes up to 1 GB. Nothing: as many as there are processors.
ARG JOBS=
RUN cmake -G Ninja -B build -DCMAKE_BUILD_TYPE=Release -DMNEME_TESTS=OFF \
      -DMNEME_CUDA=${MNEME_CUDA} "-DCMAKE_CUDA_ARCHITECTURES=${CUDA_ARCHITECTURES}" \
 && ninja -C build -j "${JOBS:-$(nproc)}" mneme-server mneme mneme-make-model \
 && cmake --install build --component serving --strip --prefix /image/usr/local
RUN tools/third_party.sh packages /image/usr/local/bin/* /image/usr/local/lib/* >/image/packages \
 && tools/third_party.sh licences build /image/usr/local/share/doc/mneme/third_party \
      /image/usr/local/bin/* /image/usr/local/lib/*

FROM ${RUNTIME_IMAGE}
COPY --from=build /image/packages /usr/local/share/doc/mneme/packages
RUN apt-get update -q \
 && DEBIAN_FRONTEND=noninteractive xargs apt-get install -q -y --no-install-recommends \
      </usr/local/share/doc/mneme/packages \
 && rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/cache/debconf/*-old /var/cache/ldconfig/* \
      /var/log/apt /var/log/*.log \
 && groupadd --system --gid 65532 mneme \
 && useradd --system --uid 65532 --gid mneme --no-create-home --home-dir /models \
      --shell /usr/sbin/nologin mneme
COPY --from=build /image/usr/local /usr/local
# Better here than at the first start: every library is there, and of the right version.
RUN mneme-server --version && mneme --version \
 && for library in /usr/local/lib/libmneme_*.so; do \
      if ldd "$library" | grep 'not found'; then exit 1; fi; \
    done

ARG VERSION=0.1.0
ARG REVISION=
LABEL org.opencontainers.image.title="Mneme" \
      org.opencontainers.image.description="Inference server for recurrent-memory language models" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"

# The server refuses to listen on all interfaces until it is given keys, client certificates, or
# --insecure: a container that nobody configured ends with a line that says so.
ENV MNEME_HOST=0.0.0.0
EXPOSE 8000 50051
# For MNEME_SESSION_DIR=/sessions/store: a volume there begins with this owner.
RUN install -d -o 65532 -g 65532 -m 0700 /sessions
VOLUME /models
WORKDIR /models
USER 65532:65532

# Failures while the model loads do not count until the start period is over.
HEALTHCHECK --interval=10s --timeout=5s --start-period=15m --retries=3 \
  CMD ["mneme", "health", "--wait", "0s", "--timeout", "3s"]
# Drains: docker stop needs --time, or compose stop_grace_period, above --shutdown-timeout + 5 s.
STOPSIGNAL SIGTERM
ENTRYPOINT ["mneme-server"]
