/* Runs files and folders of inputs through a fuzz target: regressions without libFuzzer. */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static int one(const char *path)
{
    FILE *f = fopen(path, "rb");
    if (!f)
        return 1;
    fseek(f, 0, SEEK_END);
    long n = ftell(f);
    fseek(f, 0, SEEK_SET);
    uint8_t *data = malloc((size_t)n + 1);
    int bad = !data || fread(data, 1, (size_t)n, f) != (size_t)n;
    fclose(f);
    if (!bad)
        LLVMFuzzerTestOneInput(data, (size_t)n);
    free(data);
    return bad;
}

int main(int argc, char **argv)
{
    int bad = 0, count = 0;
    for (int i = 1; i < argc; i++) {
        struct stat st;
        if (stat(argv[i], &st)) {
            fprintf(stderr, "no input at %s\n", argv[i]);
            return 1;
        }
        DIR *dir = S_ISDIR(st.st_mode) ? opendir(argv[i]) : NULL;
        struct dirent *e;
        if (!dir) {
            bad += one(argv[i]);
            count++;
            continue;
        }
        while ((e = readdir(dir))) {
            char path[4096];
            snprintf(path, sizeof path, "%s/%s", argv[i], e->d_name);
            if (e->d_name[0] != '.' && !stat(path, &st) && S_ISREG(st.st_mode)) {
                bad += one(path);
                count++;
            }
        }
        closedir(dir);
    }
    printf("%d inputs, %d unreadable\n", count, bad);
    return bad || !count;
}
