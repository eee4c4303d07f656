/* What an external profiler sees: an NVTX injection that writes the name of each pushed range once, into a file
 * beside this library: libnvtx_names.so.names. NVTX loads the library that NVTX_INJECTION64_PATH names on its first
 * call. profile_run builds it: cc -shared -fPIC -I CUDA/include nvtx_names.c -o libnvtx_names.so -ldl */
#define _GNU_SOURCE
#include <nvtx3/nvToolsExt.h>

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

enum { kMostNames = 4096 };
static char* g_names[kMostNames];
static int g_count = 0;
static char g_path[4096];
static pthread_mutex_t g_lock = PTHREAD_MUTEX_INITIALIZER;

static int NVTX_API range_push(const char* name) {
  pthread_mutex_lock(&g_lock);
  int i = 0;
  while (i < g_count && strcmp(g_names[i], name) != 0)
    ++i;
  if (i == g_count && g_count < kMostNames) {
    g_names[g_count++] = strdup(name);
    FILE* file = fopen(g_path, "a");
    if (file != NULL) {
      fprintf(file, "%s\n", name);
      fclose(file);
    }
  }
  pthread_mutex_unlock(&g_lock);
  return 0;
}

/* The entry point that NVTX calls; 1 means success. */
int NVTX_API InitializeInjectionNvtx2(NvtxGetExportTableFunc_t get_export_table) {
  const NvtxExportTableCallbacks* callbacks = get_export_table(NVTX_ETID_CALLBACKS);
  NvtxFunctionTable table = NULL;
  unsigned int size = 0;
  Dl_info self; /* of a static function: CUPTI has an InitializeInjectionNvtx2 of its own */
  if (callbacks == NULL || dladdr((void*)range_push, &self) == 0 ||
      !callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE, &table, &size) ||
      size <= NVTX_CBID_CORE_RangePushA)
    return 0;
  snprintf(g_path, sizeof g_path, "%s.names", self.dli_fname);
  *table[NVTX_CBID_CORE_RangePushA] = (NvtxFunctionPointer)range_push;
  return 1;
}
