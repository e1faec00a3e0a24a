#include "plan/settle.h"

#include <stdio.h>

#include "base/alloc.h"
#include "base/file.h"

static void settle_expert_format(const struct checkpoint *ck, struct qr_config *config)
{
    const struct tensor_view *w = checkpoint_find(ck, "layers.0.ffn.experts.0.w1.weight");
    if (!w)
        return; /* the comparison with the schema will name it */
    config->expert_format = w->dtype == DTYPE_F8_E4M3 ? QR_EXPERT_FP8 : QR_EXPERT_FP4;
    config->expert_format_stated = true;
}

static int32_t stages_present(const struct checkpoint *ck)
{
    char name[64];
    int32_t n = 0;
    for (;; n++) {
        snprintf(name, sizeof name, "mtp.%d.attn_norm.weight", (int)n);
        if (!checkpoint_find(ck, name))
            return n;
    }
}

static qr_status settle_drafter(const struct checkpoint *ck, struct qr_config *config, qr_error *err)
{
    bool serial = checkpoint_find(ck, "mtp.0.e_proj.weight"), block = checkpoint_find(ck, "mtp.0.main_proj.weight");
    if (config->drafter == QR_DRAFTER_MTP && block && !serial)
        return qr_fail(err, QR_BAD_FILE,
                       "%s: mtp.0.main_proj.weight belongs to a DSpark drafter, but config.json has no dspark_* fields: "
                       "its mtp.* tensors are not those of the MTP layer",
                       checkpoint_path(ck));
    if (config->drafter == QR_DRAFTER_DSPARK && serial && !block)
        return qr_fail(err, QR_BAD_FILE,
                       "%s: mtp.0.e_proj.weight belongs to the MTP layer, but config.json has dspark_* fields",
                       checkpoint_path(ck));
    if (config->drafter != QR_DRAFTER_DSPARK)
        return QR_OK;
    int32_t stages = stages_present(ck);
    if (stages == 0)
        return QR_OK;
    if (stages > QR_MAX_LAYERS - config->num_hidden_layers)
        return qr_fail(err, QR_BAD_FILE, "%s: %d draft stages, wanted at most %d", checkpoint_path(ck), (int)stages,
                       QR_MAX_LAYERS - (int)config->num_hidden_layers);
    for (int32_t i = config->num_draft_layers; i < stages; i++)
        config->compress_ratios[config->num_hidden_layers + i] = 0;
    config->num_draft_layers = stages;
    return QR_OK;
}

qr_status config_settle(const struct checkpoint *ck, struct qr_config *config, qr_error *err)
{
    if (config->family != QR_FAMILY_V4 || config->stored_w8a8)
        return QR_OK;
    settle_expert_format(ck, config);
    return settle_drafter(ck, config, err);
}

qr_status model_folder_open(const char *dir, struct qr_config *config, struct checkpoint **ck, qr_error *err)
{
    struct checkpoint *opened = NULL;
    char *path = path_join(dir, "config.json");
    qr_status st = path ? config_read(path, config, err) : qr_fail(err, QR_NO_MEMORY, "%s: its path", dir);
    if (st == QR_OK)
        st = checkpoint_open(dir, &opened, err);
    if (st == QR_OK)
        st = config_settle(opened, config, err);
    qr_free(path);
    if (st != QR_OK) {
        checkpoint_close(opened);
        return st;
    }
    *ck = opened;
    return QR_OK;
}
