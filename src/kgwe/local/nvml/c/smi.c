/* As much of nvidia-smi as a driver needs: `nvidia-smi --gpu-reset -i UUID`, which NVML has no function for.
 *
 * It stands beside the library and the state, as the real one stands beside the real driver.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static void *open_library(void) {
    char path[4096];
    ssize_t length = readlink("/proc/self/exe", path, sizeof path - 1);
    path[length > 0 ? length : 0] = 0;
    char *slash = strrchr(path, '/');
    size_t folder = slash ? (size_t)(slash - path) + 1 : 0;
    snprintf(path + folder, sizeof path - folder, "libnvidia-ml.so.1");
    return dlopen(path, RTLD_NOW);
}

int main(int argc, char **argv) {
    const char *uuid = NULL;
    int is_reset = 0;
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--gpu-reset") || !strcmp(argv[i], "-r"))
            is_reset = 1;
        else if ((!strcmp(argv[i], "-i") || !strcmp(argv[i], "--id")) && i + 1 < argc)
            uuid = argv[++i];
    }
    if (!is_reset || !uuid) return fprintf(stderr, "usage: nvidia-smi --gpu-reset -i UUID\n"), 2;
    void *library = open_library();
    if (!library) return fprintf(stderr, "cannot open the driver library: %s\n", dlerror()), 12;
    int (*init)(unsigned) = (int (*)(unsigned))dlsym(library, "nvmlInitWithFlags");
    int (*reset)(const char *) = (int (*)(const char *))dlsym(library, "kgweReset");
    const char *(*explain)(int) = (const char *(*)(int))dlsym(library, "nvmlErrorString");
    int code = init(0);
    if (!code) code = reset(uuid);
    if (!code) return printf("GPU %s was successfully reset.\nAll done.\n", uuid), 0;
    /* The real one prints such lines on stdout. */
    printf("GPU %s could not be reset: %s\n", uuid, explain(code));
    return code;
}
