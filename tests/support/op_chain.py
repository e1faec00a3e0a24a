"""A decode step, or what leads to attention, as standalone operators in a row: what a composition of quire op must equal."""
import math
import struct

import op_files as f

KINDS = {0: "swa", 4: "csa", 128: "hca"}


def single(x):
    return struct.unpack("<f", struct.pack("<f", x))[0]


def frequencies(config, ratio):
    """v4-model.md 5.1, each step one f32 operation."""
    dim, scaling = config["qk_rope_head_dim"], config["rope_scaling"]
    base = config["compress_rope_theta" if ratio else "rope_theta"]
    out = [single(1 / single(base ** (2 * i / dim))) for i in range(dim // 2)]
    if not ratio:
        return out
    turn = lambda beta: dim * math.log(scaling["original_max_position_embeddings"] / (2 * math.pi * beta)) / (2 * math.log(base))
    low = max(math.floor(turn(scaling["beta_fast"])), 0)
    high = min(math.ceil(turn(scaling["beta_slow"])), dim - 1)
    for i, value in enumerate(out):
        ramp = single(min(max(single(single(i - low) / single(high - low)), 0), 1))
        g = single(1 - ramp)
        out[i] = single(single(single(value / scaling["factor"]) * single(1 - g)) + single(value * g))
    return out


def bf16(x):
    bits = struct.unpack("<I", struct.pack("<f", x))[0]
    return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16


class Chain:
    """Of one model; a failure is one of `case`."""

    def __init__(self, model, scratch, case):
        self.model, self.scratch, self.case = model, scratch, case

    def params(self, layer):
        return {**self.model.config, "ratio": self.model.ratios[layer], "layer_id": layer, "max_position_embeddings": 1048576}

    def alone(self, name, layer, inputs):
        """One standalone operator."""
        out = f.run(self.scratch, name, "w8a8", self.params(layer), inputs)
        self.case.assertIsInstance(out, dict, (name, out))
        return out

    def turns(self, layer, positions):
        """Rows of the deployment's rotary tables: bf16 cosines and sines of f32 angles, a second half like the first."""
        rates = frequencies(self.model.config, self.model.ratios[layer])
        out = []
        for function in (math.cos, math.sin):
            rows = [[bf16(function(single(p * rate))) for rate in rates] for p in positions]
            out.append(f.Array("BF16", [len(positions), 2 * len(rates)], b"".join(struct.pack(f"<{len(r)}H", *r) * 2 for r in rows)))
        return out

    def before_attention(self, layer, x, positions):
        """Operators 3, 2 and 6."""
        w, cos_sin = self.model.layer("w8a8", layer), self.turns(layer, positions)
        out = self.alone("hc_pre", layer, {"x": x, **{f"hc_{k}": w[f"hc_attn_{k}"] for k in ("fn", "scale", "base")}})
        out["x"] = self.alone("rmsnorm", layer, {"x": out["x_mixed"], "w": w["attn_norm_w"]})["x_normed"]
        names = ("wq_a", "wq_b", "wq_b_scale", "wkv", "gamma_cq", "gamma_ckv")
        out.update(self.alone("qkv_proj_rope", layer, {"x": out["x"], "rope_cos": cos_sin[0], "rope_sin": cos_sin[1], **{k: w[k] for k in names}}))
        return out

    def after_attention(self, layer, x, first, attention):
        """Operators 11 to 13 or 28, and 4."""
        w = self.model.layer("w8a8", layer)
        out = self.alone(attention.pop("name"), layer, {**attention, "q": first["q"], **{k: w[k] for k in ("attn_sink", "wo_a", "wo_b", "wo_b_scale")}})
        return self.alone("hc_post", layer, {"sub": out["attn_out"], "residual": x, "post": first["post"], "comb": first["comb"]})["y"]

    def decode(self, layer, x, positions, before, composed):
        """Two rows of one request; `before`: its caches, `composed`: the composition's outputs, whose pools must be the
        operators' too. Returns the streams."""
        ratio, w = self.model.ratios[layer], self.model.layer("w8a8", layer)
        rows = self.before_attention(layer, x, positions)
        prepared = self.alone("decode_prepare", layer, {"position_ids": f.ints(positions, 1, 2), "table": before["block_table"]})
        pool, width = bytearray(before["kv_cache"].data), 2 * self.model.config["head_dim"]
        for i, slot in enumerate(prepared["ori_slot"].values()):
            pool[slot * width:(slot + 1) * width] = rows["kv"].data[i * width:(i + 1) * width]
        keys = f.Array("BF16", before["kv_cache"].shape, pool)
        self.case.assertEqual(keys.data, composed["kv_cache"].data)
        cos, sin = self.turns(layer, positions)
        attention = {"name": f"decode_sparse_attn_{KINDS[ratio]}", "ori_kv": keys, "swa_indices": prepared["swa_indices"],
                     "swa_lens": prepared["swa_lens"], "position_ids": f.ints(positions), "freqs_cos": cos, "freqs_sin": sin}
        if ratio:
            attention.update(self.compressed(layer, w, before, rows, composed, positions))
        return self.after_attention(layer, x, rows, attention)

    def compressed(self, layer, w, before, rows, composed, positions):
        """Operators 7 to 10: what the attention of a compressed layer takes besides."""
        ratio, at = self.model.ratios[layer], f.ints(positions, 1, 2)
        start = self.turns(layer, [next((p for p in positions if (p + 1) % ratio == 0), positions[1]) // ratio * ratio])
        slots = lambda table, rows: f.ints([table.values()[p // rows % table.shape[1]] * rows + p % rows for p in positions], 1, 2)
        ends = lambda table: f.ints([-1 if (p + 1) % ratio else table.values()[p // 128] * (128 // ratio) + p % 128 // ratio
                                     for p in positions], 1, 2)
        shared = {"x": rows["x"].reshaped(1, 2, rows["x"].shape[1]), "cos": start[0], "sin": start[1], "position_ids": at}
        stem, kind = ("csa_cmp", "ratio4") if ratio == 4 else ("hca_cmp", "ratio128")
        out = self.alone(f"decode_compressor_{kind}", layer, {
            **shared, **{k: w[f"{stem}_{k}"] for k in ("wkv", "wgate", "ape", "norm_w")}, "cmp_kv_cache": before["cmp_kv"],
            "cmp_slot": ends(before["cmp_table"]), "state": before["state"], "state_table": before["state_table"],
            "state_slot": slots(before["state_table"], before["state"].shape[1])})
        self.case.assertEqual(out["cmp_kv_cache"].data, composed["cmp_kv"].data, layer)
        self.case.assertEqual(out["state"].data, composed["state"].data, layer)
        attention = {"cmp_kv": out["cmp_kv_cache"], "cmp_table": before["cmp_table"]}
        if ratio != 4:
            visible = (positions[1] + 1) // ratio
            return {**attention, "cmp_indices": f.ints([j if j < (p + 1) // ratio else -1 for p in positions for j in range(visible)], 2, visible)}
        out = self.alone("decode_indexer_compressor", layer, {
            **shared, **{k: w[f"csa_inner_{k}"] for k in ("wkv", "wgate", "ape", "norm_w")}, "hadamard": w["csa_hadamard_idx"],
            "idx_kv_cache": before["idx_kv_cache"], "idx_kv_scale": before["idx_kv_scale"], "cmp_slot": ends(before["idx_table"]),
            "state": before["inner_state"], "state_table": before["inner_state_table"], "state_slot": slots(before["inner_state_table"], 4)})
        for name, other in (("idx_kv_cache", "idx_kv_cache"), ("idx_kv_scale", "idx_kv_scale"), ("state", "inner_state")):
            self.case.assertEqual(out[name].data, composed[other].data, name)
        cos, sin = self.turns(layer, positions)
        best = self.alone("decode_indexer", layer, {
            "x": rows["x"], "qr": rows["qr"], "qr_scale": rows["qr_scale"], "rope_cos": cos, "rope_sin": sin, "position_ids": at,
            "idx_kv_cache": out["idx_kv_cache"], "idx_kv_scale": out["idx_kv_scale"], "idx_table": before["idx_table"],
            "kv_seq_lens": f.ints([positions[1] + 1]), **{k: w[k] for k in ("csa_idx_wq_b", "csa_idx_wq_b_scale", "csa_weights_proj", "csa_hadamard_idx")}})
        topk, each = self.model.config["index_topk"], best["topk_idxs"].shape[2]
        rows = best["topk_idxs"].reshaped(2 * each)
        kept = min(topk, each)
        return {**attention, "cmp_indices": f.joined([rows.rows(0, kept), rows.rows(each, kept)], 2, kept)}
