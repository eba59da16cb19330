/* A stand-in for libnvidia-ml.so.1 at the C ABI, told what to answer by a text file that may change while it runs.
 *
 * NVML_STUB_SCRIPT names that file. Each line is `KEY GPU VALUE [VALUE]`; GPU is an index or `*`; the last line that
 * fits wins. KEY is a function's name, `field.N` for a field value, or a name used below; VALUE is a number or text, and
 * `!N` makes the function (or field) answer the error N. Also:
 *     gpus * N              how many there are (2)
 *     hang * FUNCTION       does not return while the line stands
 *     lost I N              every call on that GPU answers N (15)
 *     epoch I N             handles fetched under another epoch are dead (15), as after a reset
 *     process I PID BYTES   one line per compute process; `graphics I PID BYTES` likewise
 *     type.N * T            the value type of field N (3, unsigned long long)
 *     mig I 1               the GPU is divided with MIG; its instance K answers as the GPU with the index 10 * (I + 1) + K
 *     instances I N         how many instances (0)
 *     events * 1            the driver keeps errors; `xid I N` is one, which is told once
 * NVML_STUB_LOG, if set, gets a line per call. -DOLD_DRIVER leaves out what drivers before 535 do not have.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define GPUS 8
#define LINES 512
typedef struct { int index, epoch; } handle_t;
typedef struct { char key[64], gpu[8], a[128], b[64]; } line_t;
typedef unsigned int u32;
typedef unsigned long long u64;

#define INSTANCES 7
static handle_t handles[GPUS][16], parts[GPUS][INSTANCES];
static line_t lines[LINES];
static int count;
static struct timespec read_at;
static long long read_size = -1;

static void refresh(void) {
    const char *path = getenv("NVML_STUB_SCRIPT");
    struct stat st;
    count = path ? count : 0;
    if (!path || stat(path, &st)) return;
    if (st.st_mtim.tv_sec == read_at.tv_sec && st.st_mtim.tv_nsec == read_at.tv_nsec && st.st_size == read_size) return;
    FILE *file = fopen(path, "r");
    char text[512];
    if (!file) return;
    count = 0;
    while (count < LINES && fgets(text, sizeof text, file)) {
        line_t *l = &lines[count];
        memset(l, 0, sizeof *l);
        if (sscanf(text, "%63s %7s %127[^\t\n]\t%63s", l->key, l->gpu, l->a, l->b) >= 3) count++;
    }
    fclose(file);
    read_at = st.st_mtim;
    read_size = st.st_size;
}

static line_t *find(const char *key, int gpu) {
    char number[8];
    snprintf(number, sizeof number, "%d", gpu);
    for (int i = count - 1; i >= 0; i--)
        if (!strcmp(lines[i].key, key) && (!strcmp(lines[i].gpu, "*") || !strcmp(lines[i].gpu, number))) return &lines[i];
    return NULL;
}

static int error_of(line_t *l) { return l && l->a[0] == '!' ? atoi(l->a + 1) : 0; }

static long long number(const char *key, int gpu, long long otherwise) {
    line_t *l = find(key, gpu);
    return l && l->a[0] != '!' ? strtoll(l->a, NULL, 0) : otherwise;
}

static int gpus(void) { return (int)number("gpus", 0, 2); }

/* Every function starts here: log, hang, scripted errors, dead handles. `gpu` is -1 for library calls. */
static int enter(const char *name, handle_t *h) {
    const char *log = getenv("NVML_STUB_LOG");
    int gpu = h ? h->index : -1;
    refresh();
    if (log) {
        FILE *file = fopen(log, "a");
        if (file) fprintf(file, "%s %d\n", name, gpu), fclose(file);
    }
    for (;;) {
        line_t *l = find("hang", gpu < 0 ? 0 : gpu);
        if (!l || strcmp(l->a, name)) break;
        usleep(5000);
        refresh();
    }
    if (h) {
        int lost = (int)number("lost", gpu, 0);
        if (lost) return lost;
        if (number("epoch", gpu, 0) != h->epoch) return 15;
    }
    return error_of(find(name, gpu < 0 ? 0 : gpu));
}

#define ENTER(h) do { int code_ = enter(__func__, h); if (code_) return code_; } while (0)

static int give(int index, handle_t **out) {
    if (index < 0 || index >= gpus() || index >= GPUS) return 2;
    int lost = (int)number("lost", index, 0), epoch = (int)number("epoch", index, 0);
    if (lost) return lost;
    handles[index][epoch & 15] = (handle_t){index, epoch};
    *out = &handles[index][epoch & 15];
    return 0;
}

static int text(const char *key, int gpu, const char *otherwise, char *out, u32 size) {
    line_t *l = find(key, gpu);
    if (strlen(l ? l->a : otherwise) + 1 > size) return 7;
    strcpy(out, l ? l->a : otherwise);
    return 0;
}

static void uuid_of(int index, char *out, u32 size) {
    char otherwise[64];
    snprintf(otherwise, sizeof otherwise, "GPU-%08d-0000-4000-8000-000000000000", index);
    text("uuid", index, otherwise, out, size);
}

/* -- library and system ------------------------------------------------------------------------------------------- */
int nvmlInit_v2(void) { ENTER(NULL); return 0; }
int nvmlShutdown(void) { ENTER(NULL); return 0; }
int nvmlDeviceGetCount_v2(u32 *out) { ENTER(NULL); *out = (u32)gpus(); return 0; }
int nvmlSystemGetDriverVersion(char *out, u32 n) { ENTER(NULL); return text("driver_version", 0, "580.95.05", out, n); }
int nvmlSystemGetNVMLVersion(char *out, u32 n) { ENTER(NULL); return text("nvml_version", 0, "13.580.95.05", out, n); }
int nvmlSystemGetCudaDriverVersion_v2(int *out) { ENTER(NULL); *out = (int)number("cuda_version", 0, 13000); return 0; }
int nvmlDeviceGetHandleByIndex_v2(u32 index, handle_t **out) {
    int code = enter(__func__, NULL), own = error_of(find("handle", (int)index));
    return code ? code : own ? own : give((int)index, out);
}
int nvmlDeviceGetHandleByUUID(const char *uuid, handle_t **out) {
    ENTER(NULL);
    for (int i = 0; i < gpus() && i < GPUS; i++) {
        char own[96];
        uuid_of(i, own, sizeof own);
        if (!strcmp(own, uuid)) return give(i, out);
    }
    return 6;
}

/* -- one number --------------------------------------------------------------------------------------------------- */
#define NUMBER(name, otherwise) \
    int name(handle_t *h, u32 *out) { ENTER(h); *out = (u32)number(#name, h->index, otherwise); return 0; }
NUMBER(nvmlDeviceGetPowerUsage, 250000)
NUMBER(nvmlDeviceGetPowerManagementLimit, 600000)
NUMBER(nvmlDeviceGetEnforcedPowerLimit, 600000)
NUMBER(nvmlDeviceGetPowerManagementDefaultLimit, 600000)
NUMBER(nvmlDeviceGetPerformanceState, 1)
NUMBER(nvmlDeviceGetFanSpeed, 40)
NUMBER(nvmlDeviceGetPcieReplayCounter, 0)
NUMBER(nvmlDeviceGetCurrPcieLinkGeneration, 5)
NUMBER(nvmlDeviceGetCurrPcieLinkWidth, 16)
NUMBER(nvmlDeviceGetMaxPcieLinkGeneration, 5)
NUMBER(nvmlDeviceGetMaxPcieLinkWidth, 16)
NUMBER(nvmlDeviceGetMemoryBusWidth, 512)
NUMBER(nvmlDeviceGetPersistenceMode, 1)

static int clock_of(handle_t *h, u32 kind, const char *sm, const char *memory, long long a, long long b, u32 *out) {
    line_t *l = find(kind == 2 ? memory : sm, h->index);
    if (error_of(l)) return error_of(l);
    *out = (u32)(kind == 2 ? number(memory, h->index, b) : number(sm, h->index, a));
    return 0;
}
int nvmlDeviceGetClockInfo(handle_t *h, u32 kind, u32 *out) {
    ENTER(h);
    return clock_of(h, kind, "clock.sm", "clock.memory", 2790, 13365, out);
}
int nvmlDeviceGetMaxClockInfo(handle_t *h, u32 kind, u32 *out) {
    ENTER(h);
    return clock_of(h, kind, "max.sm", "max.memory", 3090, 14001, out);
}
int nvmlDeviceGetTemperature(handle_t *h, u32 sensor, u32 *out) {
    ENTER(h);
    *out = (u32)number("temperature", h->index, 61);
    return sensor ? 2 : 0;
}
int nvmlDeviceGetTemperatureThreshold(handle_t *h, u32 kind, u32 *out) {
    ENTER(h);
    *out = (u32)number("threshold", h->index, 93);
    return kind == 1 ? 0 : 2;
}

/* -- several numbers ---------------------------------------------------------------------------------------------- */
int nvmlDeviceGetPowerManagementLimitConstraints(handle_t *h, u32 *low, u32 *high) {
    ENTER(h);
    *low = (u32)number("power.min", h->index, 150000);
    *high = (u32)number("power.max", h->index, 600000);
    return 0;
}
int nvmlDeviceGetCudaComputeCapability(handle_t *h, int *major, int *minor) {
    ENTER(h);
    int both = (int)number("capability", h->index, 120);
    *major = both / 10;
    *minor = both % 10;
    return 0;
}
int nvmlDeviceGetMigMode(handle_t *h, u32 *now, u32 *later) {
    ENTER(h);
    *now = *later = (u32)number("mig", h->index, 0);
    return find("mig", h->index) ? 0 : 3;
}
int nvmlDeviceGetMaxMigDeviceCount(handle_t *h, u32 *out) { ENTER(h); *out = INSTANCES; return 0; }
int nvmlDeviceGetMigDeviceHandleByIndex(handle_t *h, u32 number_of_part, handle_t **out) {
    ENTER(h);
    if (number_of_part >= INSTANCES || number_of_part >= number("instances", h->index, 0)) return 6;
    *out = &parts[h->index][number_of_part];
    **out = (handle_t){10 * (h->index + 1) + (int)number_of_part, 0};
    return 0;
}
typedef struct { int index, told; } events_t;
static events_t events[64];
int nvmlEventSetCreate(events_t **out) {
    static int made;
    ENTER(NULL);
    if (!number("events", 0, 0)) return 3;
    *out = &events[made++ & 63];
    **out = (events_t){-1, 0};
    return 0;
}
int nvmlDeviceRegisterEvents(handle_t *h, u64 kinds, events_t *set) { (void)kinds; ENTER(h); set->index = h->index; return 0; }
typedef struct { handle_t *device; u64 kind, number; u32 gpu_instance, compute_instance; } event_t;
int nvmlEventSetWait_v2(events_t *set, event_t *out, u32 wait_ms) {
    (void)wait_ms;
    ENTER(NULL);
    line_t *l = find("xid", set->index);
    if (!l || set->told) return 10;
    set->told = 1;
    *out = (event_t){NULL, 8, strtoull(l->a, NULL, 0), ~0u, ~0u};
    return 0;
}
int nvmlDeviceGetEccMode(handle_t *h, u32 *now, u32 *later) {
    ENTER(h);
    *now = *later = (u32)number("ecc", h->index, 1);
    return 0;
}
int nvmlDeviceGetVirtualizationMode(handle_t *h, u64 *out) {
    ENTER(h);
    *(u32 *)out = (u32)number("virtualization", h->index, 0); /* the C type is an enum */
    return 0;
}
int nvmlDeviceGetTotalEnergyConsumption(handle_t *h, u64 *out) {
    ENTER(h);
    *out = (u64)number("energy", h->index, 1000);
    return 0;
}
int nvmlDeviceGetUtilizationRates(handle_t *h, u32 *out) {
    ENTER(h);
    out[0] = (u32)number("util.gpu", h->index, 97);
    out[1] = (u32)number("util.memory", h->index, 55);
    return 0;
}
int nvmlDeviceGetMemoryInfo(handle_t *h, u64 *out) {
    ENTER(h);
    out[0] = (u64)number("memory.total", h->index, 100LL << 30);
    out[2] = (u64)(number("memory.used", h->index, 40LL << 30) + number("memory.reserved", h->index, 1LL << 30));
    out[1] = out[0] - out[2];
    return 0;
}
int nvmlDeviceGetCurrentClocksThrottleReasons(handle_t *h, u64 *out) {
    ENTER(h);
    *out = (u64)number("reasons", h->index, 4);
    return 0;
}
int nvmlDeviceGetUUID(handle_t *h, char *out, u32 n) { ENTER(h); uuid_of(h->index, out, n); return 0; }
int nvmlDeviceGetName(handle_t *h, char *out, u32 n) {
    ENTER(h);
    return text("name", h->index, "NVIDIA RTX PRO 6000 Blackwell Workstation Edition", out, n);
}
typedef struct { char legacy[16]; u32 domain, bus, device, id, subsystem; char bus_id[32]; } pci_t;
int nvmlDeviceGetPciInfo_v3(handle_t *h, pci_t *out) {
    ENTER(h);
    memset(out, 0, sizeof *out);
    snprintf(out->bus_id, sizeof out->bus_id, "00000000:%02X:00.0", h->index + 1);
    return 0;
}

typedef struct { u32 pid; u64 bytes; u32 gpu_instance, compute_instance; } process_t;
static int processes(handle_t *h, const char *key, u32 *room, process_t *out) {
    u32 found = 0;
    char own[8];
    snprintf(own, sizeof own, "%d", h->index);
    for (int i = 0; i < count; i++) {
        if (strcmp(lines[i].key, key) || strcmp(lines[i].gpu, own)) continue;
        if (found < *room)
            out[found] = (process_t){(u32)atoi(lines[i].a), strtoull(lines[i].b, NULL, 0), ~0u, ~0u};
        found++;
    }
    int fits = found <= *room;
    *room = found;
    return fits ? 0 : 7;
}
int nvmlDeviceGetComputeRunningProcesses_v2(handle_t *h, u32 *n, process_t *out) { ENTER(h); return processes(h, "process", n, out); }
int nvmlDeviceGetGraphicsRunningProcesses_v2(handle_t *h, u32 *n, process_t *out) { ENTER(h); return processes(h, "graphics", n, out); }

/* -- what other programs ask, such as nvitop ---------------------------------------------------------------------- */
#define NOT_SUPPORTED(name) int name(void) { ENTER(NULL); return 3; }
NOT_SUPPORTED(nvmlDeviceGetComputeMode)
NOT_SUPPORTED(nvmlDeviceGetDecoderUtilization)
NOT_SUPPORTED(nvmlDeviceGetEncoderUtilization)
NOT_SUPPORTED(nvmlDeviceGetDisplayActive)
NOT_SUPPORTED(nvmlDeviceGetDriverModel)
NOT_SUPPORTED(nvmlDeviceGetTotalEccErrors)

/* -- newer drivers ------------------------------------------------------------------------------------------------ */
#ifndef OLD_DRIVER
int nvmlInitWithFlags(u32 flags) { (void)flags; ENTER(NULL); return 0; }
int nvmlDeviceGetComputeRunningProcesses_v3(handle_t *h, u32 *n, process_t *out) { ENTER(h); return processes(h, "process", n, out); }
int nvmlDeviceGetGraphicsRunningProcesses_v3(handle_t *h, u32 *n, process_t *out) { ENTER(h); return processes(h, "graphics", n, out); }
int nvmlDeviceGetCurrentClocksEventReasons(handle_t *h, u64 *out) {
    ENTER(h);
    *out = (u64)number("reasons", h->index, 4);
    return 0;
}
typedef struct { u32 version; u64 total, reserved, free, used; } memory_v2_t;
int nvmlDeviceGetMemoryInfo_v2(handle_t *h, memory_v2_t *out) {
    ENTER(h);
    if (out->version != (sizeof(memory_v2_t) | 2u << 24)) return 25;
    out->total = (u64)number("memory.total", h->index, 100LL << 30);
    out->reserved = (u64)number("memory.reserved", h->index, 1LL << 30);
    out->used = (u64)number("memory.used", h->index, 40LL << 30);
    out->free = out->total - out->reserved - out->used;
    return 0;
}
typedef struct { u32 version, sensor; int temperature; } temperature_t;
int nvmlDeviceGetTemperatureV(handle_t *h, temperature_t *out) {
    ENTER(h);
    if (out->version != (sizeof(temperature_t) | 1u << 24)) return 25;
    out->temperature = (int)number("temperature", h->index, 61);
    return 0;
}
typedef struct { u32 version; int value; } versioned_t;
int nvmlDeviceGetMarginTemperature(handle_t *h, versioned_t *out) {
    ENTER(h);
    if (out->version != (sizeof(versioned_t) | 1u << 24)) return 25;
    out->value = (int)number("margin", h->index, 26);
    return 0;
}
int nvmlDeviceGetAddressingMode(handle_t *h, versioned_t *out) {
    ENTER(h);
    if (out->version != (sizeof(versioned_t) | 1u << 24)) return 25;
    out->value = (int)number("addressing", h->index, 0);
    return 0;
}
typedef struct {
    u32 id, scope;
    long long timestamp, latency;
    u32 type, code;
    union { double d; u32 ui; unsigned long ul; u64 ull; long long sll; int si; unsigned short us; } value;
} field_t;
int nvmlDeviceGetFieldValues(handle_t *h, int n, field_t *out) {
    ENTER(h);
    for (int i = 0; i < n; i++) {
        char key[32], type[32];
        snprintf(key, sizeof key, "field.%u", out[i].id);
        snprintf(type, sizeof type, "type.%u", out[i].id);
        line_t *l = find(key, h->index);
        out[i].code = l ? (u32)error_of(l) : 3;
        if (out[i].code) continue;
        out[i].type = (u32)number(type, h->index, 3);
        long long value = strtoll(l->a, NULL, 0);
        if (out[i].type == 1) out[i].value.ui = (u32)value;
        else if (out[i].type == 5) out[i].value.si = (int)value;
        else if (out[i].type == 0) out[i].value.d = strtod(l->a, NULL);
        else out[i].value.sll = value;
    }
    return 0;
}
#endif
