/* A plugin for QEMU's user mode (interface version 1): prints how many instructions a program executed. Debian's package has no
 * header for plugins, so the few functions that are needed are declared here. */

#include <inttypes.h>
#include <stdio.h>

#define EXPORT __attribute__((visibility("default")))
typedef uint64_t plugin_id;
struct qemu_plugin_tb;

extern size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *tb);
extern void qemu_plugin_register_vcpu_tb_trans_cb(plugin_id id, void (*call)(plugin_id id, struct qemu_plugin_tb *tb));
extern void qemu_plugin_register_vcpu_tb_exec_inline(struct qemu_plugin_tb *tb, int add_u64, void *to, uint64_t value);
extern void qemu_plugin_register_atexit_cb(plugin_id id, void (*call)(plugin_id id, void *data), void *data);
extern void qemu_plugin_outs(const char *text);

EXPORT int qemu_plugin_version = 1;
static uint64_t executed;

static void translated(plugin_id id, struct qemu_plugin_tb *tb)
{
    (void)id;
    qemu_plugin_register_vcpu_tb_exec_inline(tb, 0, &executed, qemu_plugin_tb_n_insns(tb));
}

static void ended(plugin_id id, void *data)
{
    char text[64];
    (void)id, (void)data;
    snprintf(text, sizeof text, "instructions %" PRIu64 "\n", executed);
    qemu_plugin_outs(text);
}

EXPORT int qemu_plugin_install(plugin_id id, const void *info, int argc, char **argv)
{
    (void)info, (void)argc, (void)argv;
    qemu_plugin_register_vcpu_tb_trans_cb(id, translated);
    qemu_plugin_register_atexit_cb(id, ended, NULL);
    return 0;
}
