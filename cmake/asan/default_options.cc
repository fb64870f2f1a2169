// Options of AddressSanitizer for every program that is built with it and has none of its own;
// ASAN_OPTIONS goes before them.
//
// Its memmem() looks at all of a text to find that it may be read, however near the match is, so
// that replacing each character of a text takes quadratic time. What the system's reads beyond its
// buffer goes unnoticed, and no more.
extern "C" __attribute__((weak)) const char* __asan_default_options() {
  return "intercept_memmem=0";
}
