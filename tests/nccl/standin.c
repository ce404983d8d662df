/* Stands in for programs that need GPUs: prints what they print, as the first argument says.
   It proves nothing of the GPU path; it tests how runs are started, read, and judged. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void ended(int number) {
  static const char text[] = "gmcp: rank=1 ended after=exchange main.cu:57 turn=4 device=0 passed_line=14\n";
  (void)number;
  usleep(300000);
  if (write(2, text, sizeof(text) - 1) < 0) _exit(1);
  _exit(143);
}
static int stress(void) { return getenv("GMCP_STRESS") != NULL; }
static int silent(void) { return getenv("GMCP_SILENT") != NULL; }
static void dump(const char* how) {
  const char* folder = getenv("GMCP_DUMPS");
  char path[256];
  FILE* out;
  if (!folder) return;
  snprintf(path, sizeof(path), "%s/rank0-buffer1.bin", folder);
  if ((out = fopen(path, "wb")) != NULL) { fputs(strcmp(how, "other-data") ? "the same." : "another one", out); fclose(out); }
}
static void part(const char* mode, const char* how) {
  int bad = !strcmp(mode, "silent") ? 7 : !strcmp(how, "bad-case") ? 3 : 0, guard = !strcmp(how, "past-the-end") ? 4 : 0;
  if (!strcmp(mode, "silent") && !strcmp(how, "silent-case")) bad = 0;
  if (!strcmp(mode, "time")) {
    printf("time op=AlltoAll bytes=1024 original_us=6.190 windows_us=6.170 device_us=%s\n", !strcmp(how, "slow") ? "19.0" : "6.9");
  } else {
    printf("case op=AlltoAll count=1003 in_place=0 offset=1 fractions=0 seed=5 iterations=20 bad=%d guard=%d\n", bad, guard);
    printf("case op=AlltoAll count=1 in_place=0 offset=0 fractions=0 seed=5 iterations=20 bad=%d guard=0\n", bad);
  }
}
static int differential(char* modes, const char* how) {
  for (char* mode = strtok(modes, ","); mode; mode = strtok(NULL, ",")) {
    printf("part %s\n", mode);
    part(mode, how);
    if (!strcmp(how, "dies-in-time") && !strcmp(mode, "time")) return 3;
    if (!strcmp(how, "dies-in-check")) return 3;
  }
  printf("end ranks=2 failed=0\n");
  return 0;
}
int main(int argc, char** argv) {
  const char* how = getenv("HOW") ? getenv("HOW") : argc > 1 ? argv[1] : "good";
#ifdef ORIGINAL
  how = ORIGINAL;
#endif
#ifdef DIFFERENTIAL
  static char modes[100] = "check";
  return differential(argc > 2 ? argv[2] : modes, DIFFERENTIAL);
#endif
  if (!strcmp(how, "hang")) {
#ifdef UNRECORDED
    return 124; /* what our launcher ends with at the limit, without the wait */
#endif
    if (fork() == 0) signal(SIGTERM, ended); /* a rank outlives the process that forked it */
    fprintf(stderr, "ncclx: fallback AlltoAll: the receive buffer is in no window\n");
    fprintf(stderr, "NCCL WARN Cuda failure 1 'invalid argument'\n");
    for (;;) pause();
  }
  if (!strcmp(how, "illegal")) {
    fprintf(stderr, "CUDA error main.cu:61 'an illegal memory access was encountered'\n");
    return 1;
  }
  if (!strcmp(how, "unordered") && !getenv("CUDA_LAUNCH_BLOCKING")) { printf("Verification: FAIL\n"); return 1; }
  if (!strcmp(how, "says-fail")) { printf("Verification: FAIL\n"); return 0; }
  if (!strcmp(how, "wrong")) printf("rank 0: element 7 is 3, not 5\n");
  dump(how);
  if (stress()) fprintf(stderr, "gmcp: rank=0 buffers=3 dumped=1 guards_broken=%d poisoned=20 skewed=10\n", !strcmp(how, "guard"));
  fprintf(stderr, "ncclx: device_collectives=%d host_fallbacks=%d\n", strcmp(how, "fallback") ? 20 : 19, !strcmp(how, "fallback"));
  if (!strcmp(how, "fallback")) fprintf(stderr, "ncclx: fallback ncclAlltoAll: pointer is in no window\n");
  if (!strcmp(how, "wrong")) {
    fprintf(stderr, "job:8:8 [3] misc/socket.cc:298 NCCL WARN Net : error encountered when getting address info\n");
    return 1;
  }
  if (silent() && strcmp(how, "pass-anyway")) { printf("Verification: FAIL\n"); return 1; }
  printf("Verification: PASS\n");
  return 0;
}
