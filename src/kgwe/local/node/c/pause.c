/* The first process of a pod: it keeps the pod's namespaces alive and collects ended processes. */
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static void end(int number)
{
    (void)number;
    _exit(0);
}

static void collect(int number)
{
    (void)number;
    while (waitpid(-1, NULL, WNOHANG) > 0) {
    }
}

int main(void)
{
    struct sigaction ending = {.sa_handler = end};
    struct sigaction collecting = {.sa_handler = collect, .sa_flags = SA_NOCLDSTOP};

    if (sigaction(SIGINT, &ending, NULL) || sigaction(SIGTERM, &ending, NULL) ||
        sigaction(SIGCHLD, &collecting, NULL)) {
        return EXIT_FAILURE;
    }
    for (;;) {
        pause();
    }
}
