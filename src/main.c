#include "cmd/cmd.h"

int main(int argc, char **argv)
{
    return kd_main(argc, (const char **)(void *)argv);
}
