/* A stand-in for libcuda.so.1 that has no device, and writes a line for each call of cuInit. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NO_DEVICE = 100 };

int cuInit(unsigned flags) {
  FILE *calls = fopen(getenv("CALLS_OF_CUINIT"), "a");
  if (calls) {
    fputs("cuInit\n", calls);
    fclose(calls);
  }
  return NO_DEVICE;
}

int cuDriverGetVersion(int *version) {
  *version = 13020;
  return 0;
}

static int has_no_device(void) { return NO_DEVICE; }

/* By this the runtime finds all other functions. */
int cuGetProcAddress_v2(const char *name, void **function, int version, unsigned long long flags,
                        int *status) {
  *function = (void *)has_no_device;
  if (!strcmp(name, "cuInit")) *function = (void *)cuInit;
  if (!strcmp(name, "cuDriverGetVersion")) *function = (void *)cuDriverGetVersion;
  if (!strncmp(name, "cuGetProcAddress", 16)) *function = (void *)cuGetProcAddress_v2;
  if (status) *status = 0;
  return 0;
}

int cuGetProcAddress(const char *name, void **function, int version, unsigned long long flags) {
  return cuGetProcAddress_v2(name, function, version, flags, NULL);
}
