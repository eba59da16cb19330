/* The smallest relay, as a measure for the port of `trace capture`: what the machine itself adds to two connections.
 *
 *     cc -O2 -o relay relay.c && ./relay SERVER_PORT
 *
 * It prints its own port, and passes on what each connection to it sends to the server, and back.
 */
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

typedef struct end { int fd; struct end *far; } end_t;

static void fail(const char *what) { perror(what); exit(1); }

static end_t *watch(int poll, int fd) {
    int one = 1;
    end_t *end = calloc(1, sizeof *end);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = end};
    end->fd = fd;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (epoll_ctl(poll, EPOLL_CTL_ADD, fd, &event)) fail("epoll_ctl");
    return end;
}

static void pass_on(int poll, end_t *near) {
    static char held[65536];
    ssize_t size = recv(near->fd, held, sizeof held, 0);
    for (ssize_t sent = 0, now; sent < size; sent += now)
        if ((now = send(near->far->fd, held + sent, (size_t)(size - sent), MSG_NOSIGNAL)) <= 0) break;
    if (size > 0) return;
    epoll_ctl(poll, EPOLL_CTL_DEL, near->fd, NULL);
    shutdown(near->far->fd, SHUT_WR);
}

int main(int argc, char **argv) {
    if (argc != 2) return 2;
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((unsigned short)atoi(argv[1]))}, own = {.sin_family = AF_INET};
    socklen_t size = sizeof own;
    struct epoll_event ready[64];
    int poll = epoll_create1(0), listener = socket(AF_INET, SOCK_STREAM, 0);
    to.sin_addr.s_addr = own.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (bind(listener, (struct sockaddr *)&own, size) || listen(listener, 64)) fail("listen");
    getsockname(listener, (struct sockaddr *)&own, &size);
    printf("%d\n", ntohs(own.sin_port));
    fflush(stdout);
    end_t *door = watch(poll, listener);
    for (;;) {
        int count = epoll_wait(poll, ready, 64, -1);
        for (int i = 0; i < count; i++) {
            end_t *near = ready[i].data.ptr;
            if (near != door) { pass_on(poll, near); continue; }
            int client = accept(listener, NULL, NULL), server = socket(AF_INET, SOCK_STREAM, 0);
            if (client < 0 || connect(server, (struct sockaddr *)&to, sizeof to)) fail("connect");
            end_t *one = watch(poll, client), *other = watch(poll, server);
            one->far = other, other->far = one;
        }
    }
}
