# label: release
"""Compositions of a layer (operators 14 to 16, 20, 23, 25 to 27, 33): against golden/v4, the standalone operators, each other."""
import json
import os
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.join(os.environ["QUIRE_SOURCE"], "tests", "support"))
import op_chain
import op_files as f

GOLDEN = os.path.join(os.environ["QUIRE_SOURCE"], "tests", "golden", "v4", "tiny")
PROFILES = ("w8a8", "ref")
KINDS = op_chain.KINDS


def distance(found, wanted, width):
    """Relative L2 of each row."""
    out = []
    for i in range(0, len(wanted), width):
        a, b = found[i:i + width], wanted[i:i + width]
        out.append((sum((x - y) ** 2 for x, y in zip(a, b)) / (sum(y * y for y in b) or 1)) ** 0.5)
    return out


class Layers(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.scratch = cls.folder.name
        cls.model = f.Model(os.path.join(GOLDEN, "model"), cls.scratch)
        with open(os.path.join(GOLDEN, "cases.json")) as text:
            cases = json.load(text)["cases"]
        cls.ids = next(c["ids"] for c in cases if c["name"] == "t130")
        cls.streams, cls.golden = {}, {}
        for profile in PROFILES:
            outs = f.read(os.path.join(GOLDEN, f"{profile}-layers-t130.safetensors"))[0]
            cls.streams[profile] = [cls.model.embedded(cls.ids, profile)] + [outs[f"layers.{i}.out"] for i in range(4)]
            cls.golden[profile] = f.read(os.path.join(GOLDEN, f"{profile}-t130.safetensors"))[0]

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def setUp(self):
        self.chain = op_chain.Chain(self.model, self.scratch, self)

    def params(self, layer):
        return {**self.model.config, "ratio": self.model.ratios[layer], "layer_id": layer}

    def op(self, name, profile, layer, inputs):
        out = f.run(self.scratch, name, profile, self.params(layer), {**self.model.layer(profile, layer), **inputs})
        self.assertIsInstance(out, dict, out)
        return out

    def prefill(self, profile, layer, caches, first, count, name="prefill_layer"):
        """Rows [first, first + count) of the golden text through one layer."""
        out = self.op(name, profile, layer, {
            **caches.inputs(True), "x_hc": self.streams[profile][layer].rows(first, count),
            "position_ids": f.ints(list(range(first, first + count))), "input_ids": f.ints(self.ids[first:first + count])})
        caches.take(out)
        return out

    def decode(self, profile, layer, caches, first, name="decode_layer"):
        out = self.op(name, profile, layer, {
            **caches.inputs(False), "x_hc": self.streams[profile][layer].rows(first, 2),
            "position_ids": f.ints([first, first + 1], 1, 2), "input_ids": f.ints(self.ids[first:first + 2])})
        caches.take(out)
        return out

    def test_a_layer_of_a_prompt_is_the_goldens(self):
        for profile in PROFILES:
            for layer in range(4):
                caches = f.Caches(self.model, self.model.ratios[layer], profile, 1, 3)
                out = self.prefill(profile, layer, caches, 0, 130)
                wanted = self.streams[profile][layer + 1]
                rows = sorted(distance(out["x_next"].values(), wanted.values(), len(wanted.values()) // 130))
                with self.subTest(profile=profile, layer=layer):
                    self.assertLess(rows[13], 2e-4)
                    self.assertLess(rows[65] if profile == "ref" else 0, 1e-3)
                    self.assertLess(rows[-1], 0.1)

    def test_rows_of_the_caches_are_the_goldens(self):
        """Where the published layout puts them: pages permuted, states wrapped."""
        for profile in PROFILES:
            golden = self.golden[profile]
            for layer in (0, 1, 2):
                ratio = self.model.ratios[layer]
                caches = f.Caches(self.model, ratio, profile, 1, 3)
                self.prefill(profile, layer, caches, 0, 130)
                self.assert_rows(caches, "kv_cache", golden[f"layers.{layer}.window"], range(2, 130), 128)
                if ratio:
                    self.assert_rows(caches, "cmp_kv", golden[f"layers.{layer}.compressed"], range(130 // ratio), 128 // ratio)
                    self.assert_rows(caches, "state", golden[f"layers.{layer}.state"], range(122, 130), 4 if ratio == 4 else 8, True)
                if ratio == 4:
                    self.assert_rows(caches, "idx_kv_cache", golden[f"layers.{layer}.index_key"], range(32), 32)
                    self.assert_rows(caches, "inner_state", golden[f"layers.{layer}.index_state"], range(122, 130), 4, True)

    def assert_rows(self, caches, name, golden, numbers, page_rows, wraps=False):
        tables = {"kv_cache": "block_table", "cmp_kv": "cmp_table", "idx_kv_cache": "idx_table"}
        table, pool = caches.arrays[tables.get(name, name + "_table")].values(), caches.arrays[name].values()
        width = len(golden.values()) // golden.shape[0]
        wrong = 0
        for at, n in enumerate(numbers):
            page = n // page_rows % len(table) if wraps else n // page_rows
            row = (table[page] * page_rows + n % page_rows) * width
            for x, y in zip(pool[row:row + width], golden.values()[at * width:(at + 1) * width]):
                wrong += abs(x - y) > 1e-4 + abs(y) / 128
        self.assertLessEqual(wrong, max(8, len(golden.values()) // 100), name)

    def test_decoding_goes_on_where_a_prompt_ends(self):
        """Any cut, around the ends of groups and tiles, in bits: streams and pools."""
        for profile, layers in (("w8a8", (0, 1, 2)), ("ref", (1, 2))):
            for layer in layers:
                ratio = self.model.ratios[layer]
                whole = f.Caches(self.model, ratio, profile, 1, 3)
                full = self.prefill(profile, layer, whole, 0, 130)
                for first in (3, 6, 126, 128):
                    cut = f.Caches(self.model, ratio, profile, 1, 3)
                    self.prefill(profile, layer, cut, 0, first)
                    out = self.decode(profile, layer, cut, first)
                    self.assertEqual(out["x_next"].data, full["x_next"].rows(first, 2).data, (profile, layer, first))
                    if first == 128:
                        for name, pool in whole.arrays.items():
                            self.assertEqual(cut.arrays[name].data, pool.data, (profile, layer, name))

    def test_tiles_are_no_more_than_chunks(self):
        for layer in (1, 2):
            whole, cut = (f.Caches(self.model, self.model.ratios[layer], "w8a8", 1, 3) for _ in range(2))
            full = self.prefill("w8a8", layer, whole, 0, 130)
            parts = [self.prefill("w8a8", layer, cut, a, n)["x_next"] for a, n in ((0, 5), (5, 60), (65, 64), (129, 1))]
            self.assertEqual(b"".join(p.data for p in parts), full["x_next"].data)

    def test_a_layer_is_its_two_halves(self):
        """decode_csa then decode_moe, prefill_csa then prefill_moe, and so on: the bits of the layer."""
        for layer in range(3):
            kind = KINDS[self.model.ratios[layer]]
            for form, first, count in (("prefill", 0, 100), ("decode", 100, 2)):
                caches = [f.Caches(self.model, self.model.ratios[layer], "w8a8", 1, 3) for _ in range(2)]
                if first:
                    for c in caches:
                        self.prefill("w8a8", layer, c, 0, first)
                step = self.prefill if form == "prefill" else lambda p, l, c, at, n, name: self.decode(p, l, c, at, name)
                layer_out = step("w8a8", layer, caches[0], first, count, f"{form}_layer")["x_next"]
                half = step("w8a8", layer, caches[1], first, count, f"{form}_{kind}")["x_out"]
                weights = {k: v for k, v in self.model.layer("w8a8", layer).items() if not k.startswith(("hc_", "csa_", "hca_"))}
                weights.update({f"hc_{k}": self.model.layer("w8a8", layer)[f"hc_ffn_{k}"] for k in ("fn", "scale", "base")})
                out = f.run(self.scratch, f"{form}_moe", "w8a8", self.params(layer), {
                    **weights, "x_hc": half.reshaped(1, *half.shape), "num_tokens": f.ints([count]),
                    "input_ids": f.ints(self.ids[first:first + count], 1, count)})
                self.assertIsInstance(out, dict, out)
                self.assertEqual(out["x_next"].data, layer_out.data, (layer, form))

    def test_standalone_operators_in_a_row_are_the_composition(self):
        """A decode step that ends a group of 4 and one of 128, operator after operator: the bits of decode_swa, _hca, _csa."""
        for layer in range(3):
            ratio = self.model.ratios[layer]
            caches = f.Caches(self.model, ratio, "w8a8", 1, 3)
            self.prefill("w8a8", layer, caches, 0, 126)
            before = dict(caches.arrays)
            composed = self.decode("w8a8", layer, caches, 126, f"decode_{KINDS[ratio]}")
            found = self.chain.decode(layer, self.streams["w8a8"][layer].rows(126, 2), [126, 127], before, composed)
            self.assertEqual(found.data, composed["x_out"].data, layer)

    def test_standalone_prefill_operators_are_the_composition(self):
        """A prompt of two tiles, operator after operator: the bits of prefill_swa, _hca, _csa."""
        count = 130
        for layer in range(3):
            ratio, w = self.model.ratios[layer], self.model.layer("w8a8", layer)
            caches = f.Caches(self.model, ratio, "w8a8", 1, 3)
            composed = self.prefill("w8a8", layer, caches, 0, count, f"prefill_{KINDS[ratio]}")
            x, positions = self.streams["w8a8"][layer], list(range(count))
            rows = self.chain.before_attention(layer, x, positions)
            table, cos_sin = caches.arrays["block_table"].values(), self.chain.turns(layer, positions)
            row_of = lambda p: table[p // 128] * 128 + p % 128
            lists = [[row_of(q) for q in range(max(0, p - 127), p + 1)] for p in positions]
            attention = {"name": "prefill_sparse_attn", "ori_kv": composed["kv_cache"], "position_ids": f.ints(positions),
                         "swa_indices": f.ints([v for one in lists for v in one + [-1] * (128 - len(one))], count, 128),
                         "freqs_cos": cos_sin[0], "freqs_sin": cos_sin[1]}
            if ratio:
                stem, kind, groups = *(("csa_cmp", "ratio4") if ratio == 4 else ("hca_cmp", "ratio128")), count // ratio
                out = self.chain.alone(f"prefill_compressor_{kind}", layer, {
                    "x": rows["x"], **{k: w[f"{stem}_{k}"] for k in ("wkv", "wgate", "ape", "norm_w")}})
                pages = caches.arrays["cmp_table"]
                for j in range(groups):
                    at = pages.values()[j // (128 // ratio)] * (128 // ratio) + j % (128 // ratio)
                    flat = composed["cmp_kv"].reshaped(composed["cmp_kv"].shape[0] * (128 // ratio), self.model.config["head_dim"])
                    self.assertEqual(out["cmp_kv"].rows(j, 1).data, flat.rows(at, 1).data)
                attention.update({"cmp_kv": composed["cmp_kv"], "cmp_table": pages.reshaped(pages.shape[1])})
                best = f.ints([j if j < (p + 1) // ratio else -1 for p in positions for j in range(groups)], count, groups)
                if ratio == 4:
                    best = self.chain.alone("prefill_indexer", layer, {
                        "x": rows["x"], "qr": rows["qr"], "qr_scale": rows["qr_scale"], "rope_cos": cos_sin[0], "rope_sin": cos_sin[1],
                        **{k: v for k, v in w.items() if k.startswith(("csa_idx", "csa_weights", "csa_hadamard", "csa_inner"))}})["topk_idxs"]
                attention["cmp_indices"] = best
            self.assertEqual(self.chain.after_attention(layer, x, rows, attention).data, composed["x_out"].data, layer)

    def test_ranks_and_requests_do_not_see_one_another(self):
        """Two ranks of two requests at different positions, one of them idle: each the bits it has alone."""
        for layer in (0, 1, 2):
            ratio, starts = self.model.ratios[layer], (128, 7, 64)
            caches, alone = f.Caches(self.model, ratio, "w8a8", 4, 3), []
            pools = {k: [v, v] for k, v in caches.arrays.items()}
            for number, first in enumerate(starts):
                one = f.Caches(self.model, ratio, "w8a8", 4, 3)
                tables = {k: v for k, v in one.arrays.items() if k.endswith("table")}
                mine = {k: v.rows(number, 1).reshaped(v.shape[1]) for k, v in tables.items()}
                inputs = {**{k: v for k, v in pools.items()}, **mine}
                rank = number // 2
                out = self.op("prefill_layer", "w8a8", layer, {
                    **{k: (v[rank] if isinstance(v, list) else v) for k, v in inputs.items()},
                    "x_hc": self.streams["w8a8"][layer].rows(0, first), "position_ids": f.ints(list(range(first))),
                    "input_ids": f.ints(self.ids[:first])})
                for k in out:
                    if k in pools:
                        pools[k][rank] = out[k]
                rows = self.streams["w8a8"][layer].rows(first, 2)
                step = self.op("decode_layer", "w8a8", layer, {
                    **{k: v[rank] for k, v in pools.items() if not k.endswith("table")}, **{k: v.rows(number, 1) for k, v in tables.items()},
                    "x_hc": rows, "position_ids": f.ints([first, first + 1], 1, 2), "input_ids": f.ints(self.ids[first:first + 2])})
                alone.append(step["x_next"].data)
            width = self.streams["w8a8"][layer].shape[1:]
            blank = f.zeros("F32", 2, *width)
            rows = [self.streams["w8a8"][layer].rows(s, 2) for s in starts] + [blank]
            positions = [p for s in starts for p in (s, s + 1)] + [0, 0]
            ids = [t for s in starts for t in self.ids[s:s + 2]] + [0, 0]
            tables = {k: f.joined([v.rows(0, 2), v.rows(2, 2)], 2, 2, v.shape[1]) for k, v in caches.arrays.items() if k.endswith("table")}
            inputs = {**{k: f.joined(v, 2, *v[0].shape) for k, v in pools.items() if not k.endswith("table")}, **tables,
                      "x_hc": f.joined(rows, 2, 4, *width), "position_ids": f.ints(positions, 2, 2, 2), "input_ids": f.ints(ids, 2, 4),
                      "num_tokens": f.ints([4, 2])}
            out = self.op("decode_layer", "w8a8", layer, inputs)
            self.assertEqual(out["x_next"].data, b"".join(alone) + blank.data, layer)

    def test_experts_over_ranks_give_every_rank_its_own_rows(self):
        """decode_moe and prefill_moe over two ranks of which one has less rows, or none: what each has alone."""
        layer, x = 1, self.streams["w8a8"][1]
        weights = {k: v for k, v in self.model.layer("w8a8", layer).items() if not k.startswith(("hc_", "csa_", "hca_"))}
        weights.update({f"hc_{k}": self.model.layer("w8a8", layer)[f"hc_ffn_{k}"] for k in ("fn", "scale", "base")})
        for form, rows in (("decode", 8), ("prefill", 100)):
            each = [x.rows(0, rows), x.rows(20, rows)]
            for counts in ((rows, rows - 3), (0, rows)):
                both = self.chain.alone(f"{form}_moe", layer, {**weights, "x_hc": f.joined(each, 2, *each[0].shape), "num_tokens": f.ints(list(counts)),
                                                         "input_ids": f.ints([0] * 2 * rows, 2, rows)})["x_next"]
                for rank, n in enumerate(counts):
                    one = self.chain.alone(f"{form}_moe", layer, {**weights, "x_hc": each[rank].rows(0, max(n, 1)).reshaped(1, max(n, 1), *x.shape[1:]),
                                                            "num_tokens": f.ints([n]), "input_ids": f.ints([0] * max(n, 1), 1, max(n, 1))})["x_next"]
                    found = both.reshaped(2 * rows, *x.shape[1:]).rows(rank * rows, n)
                    self.assertEqual(found.data, one.data[:len(found.data)], (form, counts, rank))

    def test_two_ranks_prefill_their_own_counts(self):
        for layer in (1, 2):
            counts, outs = (130, 7), []
            for n in counts:
                outs.append(self.prefill("w8a8", layer, f.Caches(self.model, self.model.ratios[layer], "w8a8", 1, 3), 0, n))
            caches = f.Caches(self.model, self.model.ratios[layer], "w8a8", 1, 3).inputs(True)
            both = {k: f.joined([v, v], 2, *v.shape) for k, v in caches.items()}
            x = self.streams["w8a8"][layer]
            out = self.op("prefill_layer", "w8a8", layer, {
                **both, "x_hc": f.joined([x, x], 2, *x.shape), "position_ids": f.ints(list(range(130)) * 2, 2, 130),
                "input_ids": f.ints(self.ids * 2, 2, 130), "num_tokens": f.ints(list(counts))})
            row = len(x.data) // 130
            self.assertEqual(out["x_next"].data, outs[0]["x_next"].data + outs[1]["x_next"].data + bytes(row * (130 - 7)))
            self.assertEqual(out["kv_cache"].data, outs[0]["kv_cache"].data + outs[1]["kv_cache"].data)

    def test_work_follows_the_visible_context_not_the_ceiling(self):
        """Bytes that a step moves: the same for 1,024 positions and a table of 3 pages as for 1,048,576 and 8,192."""
        for layer in (1, 2):
            caches, moved = f.Caches(self.model, self.model.ratios[layer], "w8a8", 1, 3), []
            self.prefill("w8a8", layer, caches, 0, 126)
            for pages, most in ((3, 1024), (8192, 1048576)):
                wide = {k: f.ints((list(v.values()) + [-1] * pages)[:pages], 1, pages) if k in ("block_table", "cmp_table", "idx_table") else v
                        for k, v in caches.inputs(False).items()}
                report = f.timed(self.scratch, "decode_layer", "w8a8", {**self.params(layer), "max_position_embeddings": most}, {
                    **self.model.layer("w8a8", layer), **wide, "x_hc": self.streams["w8a8"][layer].rows(126, 2),
                    "position_ids": f.ints([126, 127], 1, 2)})
                moved.append(report["time"]["bytes"])
            self.assertEqual(*moved)
            self.assertGreater(moved[0], 100000)

    def assert_refused(self, says, op, layer, inputs, params=None):
        out = f.run(self.scratch, op, "w8a8", {**self.params(layer), **(params or {})}, {**self.model.layer("w8a8", layer), **inputs})
        self.assertIsInstance(out, str)
        self.assertIn(says, out)

    def test_what_is_out_of_range_is_refused_by_its_rule(self):
        layer, caches = 1, f.Caches(self.model, 4, "w8a8", 1, 3)
        x = self.streams["w8a8"][layer].rows(4, 2)
        good = {**caches.inputs(False), "x_hc": x, "position_ids": f.ints([4, 5], 1, 2)}
        spoil = lambda name, at, value: {**good, name: f.ints([value if i == at else v for i, v in enumerate(good[name].values())],
                                                             *good[name].shape)}
        self.assertIsInstance(self.op("decode_csa", "w8a8", layer, good), dict)
        for says, inputs in (
                ("bad position: row 0 of request 0 stands at -4", {**good, "position_ids": f.ints([-4, -3], 1, 2)}),
                ("wanted consecutive", {**good, "position_ids": f.ints([4, 6], 1, 2)}),
                ("bad position: row 1 of request 0 stands at 1024", {**good, "position_ids": f.ints([1023, 1024], 1, 2)}),
                ("bad position: kv_seq_lens", {**good, "kv_seq_lens": f.ints([7])}),
                ("bad table: block_table entry 0 is 5", spoil("block_table", 0, 5)),
                ("bad table: block_table entry 1 is -2", spoil("block_table", 1, -2)),
                ("bad table: block_table of request 0 has no page 0", spoil("block_table", 0, -1)),
                ("bad table: cmp_table of request 0 has no page 0", spoil("cmp_table", 0, -1)),
                ("bad table: idx_table entry 0 is 9", spoil("idx_table", 0, 9)),
                ("bad table: slots of request 0 row 1", {**good, "slots": f.ints([3 * 128 + 4, 3 * 128 + 6], 1, 2)}),
                ("bad table: cmp_slot of request 0 row 0", {**good, "cmp_slot": f.ints([0, -1], 1, 2)}),
                ("bad table: state_slot of request 0 row 0", {**good, "state_slot": f.ints([1, 2], 1, 2)}),
                ("bad table: state_table of request 0 has room for 4", {**good, "state_table": f.ints([1], 1, 1),
                                                                           "position_ids": f.ints([10, 11], 1, 2)}),
                ("bad shape: num_tokens of rank 0 is 3", {**good, "num_tokens": f.ints([3])}),
                ("bad shape: in.state", {**good, "state": f.zeros("F32", 7, 4, 256)}),
                ("no array in.cmp_kv", {k: v for k, v in good.items() if k != "cmp_kv"})):
            self.assert_refused(says, "decode_csa", layer, inputs)
        five = f.Caches(self.model, 0, "w8a8", 5, 1)
        self.assert_refused("bad shape: a decode step of 10 rows for 5 requests", "decode_swa", 0, {
            **five.inputs(False), "x_hc": f.joined([x] * 5, 10, *x.shape[1:]), "position_ids": f.ints([4, 5] * 5, 5, 2)})
        shared = f.Caches(self.model, 0, "w8a8", 2, 1).inputs(False)
        self.assert_refused("bad table: requests 0 and 1 both write page 3", "decode_swa", 0, {
            **shared, "block_table": f.ints([3, 3], 2, 1), "x_hc": f.joined([x] * 2, 4, *x.shape[1:]),
            "position_ids": f.ints([0, 1, 0, 1], 2, 2)})
        self.assert_refused("bad token: row 1 holds token 9999", "decode_layer", 0, {
            **f.Caches(self.model, 0, "w8a8", 1, 1).inputs(False), "x_hc": x, "position_ids": f.ints([0, 1], 1, 2),
            "input_ids": f.ints([0, 9999])})
        self.assert_refused("bad world: 3 ranks", "decode_layer", 0, {
            **{k: f.joined([v] * 3, 3, *v.shape) for k, v in f.Caches(self.model, 0, "w8a8", 1, 1).inputs(False).items()},
            "x_hc": f.joined([x] * 3, 3, *x.shape), "position_ids": f.ints([0, 1] * 3, 3, 1, 2), "input_ids": f.ints([0] * 6, 3, 2)})
        much, weights = f.zeros("F32", 8193, 4, 128), self.model.layer("w8a8", 0)
        out = f.run(self.scratch, "prefill_sparse_attn", "w8a8", self.params(0), {
            **{k: weights[k] for k in ("attn_sink", "wo_a", "wo_b", "wo_b_scale")}, "q": f.zeros("BF16", 8193, 4, 128),
            "ori_kv": f.zeros("BF16", 1, 128, 1, 128), "swa_indices": f.zeros("I32", 8193, 128), "freqs_cos": f.zeros("F32", 8193, 64),
            "freqs_sin": f.zeros("F32", 8193, 64), "position_ids": f.ints(list(range(8193)))})
        self.assertIn("bad shape: a prefill of 8193 tokens", out)
        self.assert_refused("bad shape: a prefill of 8193 tokens", "prefill_swa", 0, {
            **f.Caches(self.model, 0, "w8a8", 1, 65).inputs(True), "x_hc": much, "position_ids": f.ints(list(range(8193)))})


if __name__ == "__main__":
    sys.exit(0 if unittest.main(exit=False).result.wasSuccessful() else 1)
