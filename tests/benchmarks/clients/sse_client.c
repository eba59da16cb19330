/* The smallest load client, as a measure for Workbench's: epoll, one connection per stream, a time for each token.
 *
 *     cc -O2 -o sse_client sse_client.c && ./sse_client http://127.0.0.1:8000 STREAMS REQUESTS TOKENS [SPREAD_S [REST_MS]]
 *
 * It keeps STREAMS chats in flight until REQUESTS have ended, and prints its result in the form of `vllm bench serve`.
 * It reads replies in chunked encoding, line by line: a line "data: {...}" with content is a token, "0" ends a reply.
 * The streams start together; SPREAD_S spreads their starts over so many seconds. REST_MS is the pause between
 * two rounds of reads.
 */
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define ROOM 65536
typedef struct { int fd, used, tokens; double sent_s, last_s; char held[ROOM]; } stream_t;

static double now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void fail(const char *what) { perror(what); exit(1); }

static double *ttfts, *gaps;
static long ttft_count, gap_count, asked, answered, wanted, tokens;

static void ask(stream_t *s) {
    char body[256], text[512];
    int size = snprintf(body, sizeof body,
        "{\"model\":\"m\",\"stream\":true,\"max_tokens\":%ld,\"messages\":[{\"role\":\"user\",\"content\":\"[%012ld] hello\"}]}",
        tokens, asked++);
    size = snprintf(text, sizeof text,
        "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        "Content-Length: %d\r\n\r\n%s", size, body);
    s->tokens = 0;
    s->sent_s = now_s();
    if (send(s->fd, text, (size_t)size, 0) != size) fail("send");
}

/* Returns whether the reply has ended. */
static int line(stream_t *s, const char *text, long size, double at_s) {
    if (size == 2 && text[0] == '0') return 1;
    if (size < 8 || memcmp(text, "data: {", 7)) return 0;
    const char *content = memmem(text, (size_t)size, "\"content\":\"", 11);
    if (!content || content[11] == '"') return 0;
    if (s->tokens++) gaps[gap_count++] = at_s - s->last_s;
    else ttfts[ttft_count++] = at_s - s->sent_s;
    s->last_s = at_s;
    return 0;
}

static void receive(stream_t *s) {
    long got = recv(s->fd, s->held + s->used, (size_t)(ROOM - s->used), 0), begin = 0;
    double at_s = now_s();
    if (got <= 0) fail("recv");
    s->used += (int)got;
    for (char *end; (end = memchr(s->held + begin, '\n', (size_t)(s->used - begin)));) {
        long size = end - (s->held + begin);
        int ended = line(s, s->held + begin, size, at_s);
        begin += size + 1;
        if (!ended) continue;
        begin += 2; /* the blank line */
        answered++;
        if (asked < wanted) ask(s);
    }
    if (begin > s->used) begin = s->used;
    memmove(s->held, s->held + begin, (size_t)(s->used -= (int)begin));
}

static int ascending(const void *a, const void *b) { return (*(double *)a > *(double *)b) - (*(double *)a < *(double *)b); }

static void tell(const char *name, double *values, long count) {
    double sum = 0;
    for (long i = 0; i < count; i++) sum += values[i];
    qsort(values, (size_t)count, sizeof *values, ascending);
    printf(", \"mean_%s_ms\": %.6f, \"p99_%s_ms\": %.6f", name, 1e3 * sum / (double)count, name, 1e3 * values[count * 99 / 100]);
}

int main(int argc, char **argv) {
    if (argc < 5 || argc > 7) return 2;
    int streams = atoi(argv[2]), poll = epoll_create1(0);
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((unsigned short)atoi(strrchr(argv[1], ':') + 1))};
    struct epoll_event ready[256];
    stream_t *all = calloc((size_t)streams, sizeof *all);
    wanted = atol(argv[3]), tokens = atol(argv[4]);
    double spread_s = argc > 5 ? atof(argv[5]) : 0;
    struct timespec rest = {.tv_nsec = argc > 6 ? (long)(1e6 * atof(argv[6])) : 0};
    int started = 0;
    ttfts = malloc((size_t)wanted * sizeof *ttfts), gaps = malloc((size_t)(wanted * tokens) * sizeof *gaps);
    inet_pton(AF_INET, "127.0.0.1", &to.sin_addr);
    for (stream_t *s = all; s < all + streams; s++) {
        int one = 1;
        if ((s->fd = socket(AF_INET, SOCK_STREAM, 0)) < 0 || connect(s->fd, (struct sockaddr *)&to, sizeof to)) fail("connect");
        setsockopt(s->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = s};
        if (epoll_ctl(poll, EPOLL_CTL_ADD, s->fd, &event)) fail("epoll_ctl");
    }
    double began_s = now_s();
    while (answered < wanted) {
        int wait_ms = -1;
        while (started < streams && asked < wanted && wait_ms < 0) {
            double left_s = began_s + spread_s * started / streams - now_s();
            if (left_s > 0) wait_ms = 1 + (int)(1e3 * left_s);
            else ask(all + started++);
        }
        if (rest.tv_nsec) nanosleep(&rest, NULL);
        int count = epoll_wait(poll, ready, 256, wait_ms);
        for (int i = 0; i < count; i++) receive(ready[i].data.ptr);
    }
    double took_s = now_s() - began_s;
    long output = ttft_count + gap_count;
    printf("{\"model_id\": \"m\", \"completed\": %ld, \"duration\": %.6f, \"total_output_tokens\": %ld, \"output_throughput\": %.3f, "
           "\"request_throughput\": %.3f", answered, took_s, output, (double)output / took_s, (double)answered / took_s);
    tell("ttft", ttfts, ttft_count);
    tell("itl", gaps, gap_count);
    puts("}");
    return 0;
}
