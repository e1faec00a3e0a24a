# label: full
"""Decode steps at every start, near and far (v4-model.md section 10): the model's own forward, and operators in a row."""
import json
import os
import random
import struct
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.join(os.environ["QUIRE_SOURCE"], "tests", "support"))
import op_chain
import op_files as f

FOLDER = os.path.join(os.environ["QUIRE_SOURCE"], "tests", "golden", "v4", "tiny")


def lively(dtype, *shape):
    """Values of about unit size."""
    count = len(f.zeros(dtype, *shape).data) // f.SIZES[dtype]
    if dtype == "I8":
        return f.Array(dtype, shape, random.randbytes(count))
    values = [random.gauss(0, 1) for _ in range(min(count, 4099))]
    values = (values * (count // len(values) + 1))[:count]
    packed = [op_chain.bf16(v) for v in values] if dtype == "BF16" else values
    return f.Array(dtype, shape, struct.pack(f"<{count}{'H' if dtype == 'BF16' else 'f'}", *packed))


class Starts(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.scratch = cls.folder.name
        cls.model = f.Model(os.path.join(FOLDER, "model"), cls.scratch)

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def streams(self, count):
        """Tokens, and what enters and leaves each layer in the model's own forward."""
        with open(os.path.join(FOLDER, "cases.json")) as text:
            ids = next(c["ids"] for c in json.load(text)["cases"] if c["name"] == "t300")
        ids = (ids + ids)[:count]
        tokens, out = os.path.join(self.scratch, "tokens.json"), os.path.join(self.scratch, "trace.safetensors")
        with open(tokens, "w") as text:
            json.dump({"tokens": ids}, text)
        subprocess.run([f.QUIRE, "trace", "--model", os.path.join(FOLDER, "model"), "--tokens", tokens, "--out", out, "--want", "streams",
                        "--profile", "w8a8"], check=True, capture_output=True)
        trace = f.read(out)[0]
        return ids, [self.model.embedded(ids, "w8a8")] + [trace[f"layers.{i}.streams"] for i in range(self.model.layers)]

    def test_every_start_up_to_300_reads_nothing_that_comes_after_it(self):
        """Pools that hold the whole text, states of every position too: a step at p sees what stands before it alone."""
        count = 302
        ids, streams = self.streams(count)
        for layer in (1, 2):
            ratio, pages = self.model.ratios[layer], 3
            caches = f.Caches(self.model, ratio, "w8a8", 1, pages)
            for name in [n for n in caches.arrays if n.endswith("state")]:
                a = caches.arrays[name]
                n = f.pool_of(-(-count // a.shape[1]))
                caches.arrays[name] = f.joined([a.rows(0, 1)] * n, n, *a.shape[1:])
                caches.arrays[name + "_table"] = f.ints([f.permuted(i, n) for i in range(n - 1)], 1, n - 1)
            params = {**self.model.config, "ratio": ratio, "layer_id": layer}
            weights = self.model.layer("w8a8", layer)
            out = f.run(self.scratch, "prefill_layer", "w8a8", params, {
                **weights, **caches.inputs(True), "x_hc": streams[layer], "position_ids": f.ints(list(range(count)))})
            self.assertIsInstance(out, dict, out)
            self.assertEqual(out["x_next"].data, streams[layer + 1].data)
            caches.take(out)
            # four requests with pools of their own, behind one another
            pools = {k: f.joined([v] * 4, 4 * v.shape[0], *v.shape[1:]) for k, v in caches.arrays.items() if not k.endswith("table")}
            of = {"block_table": "kv_cache", "cmp_table": "cmp_kv", "idx_table": "idx_kv_cache"}
            tables = {}
            for k, v in caches.arrays.items():
                if k.endswith("table"):
                    n = caches.arrays[of.get(k, k[:-len("_table")])].shape[0]
                    tables[k] = f.ints([b * n + e for b in range(4) for e in v.values()], 4, v.shape[1])
            for p in range(76):
                starts = [min(p + k, 300) for k in (0, 75, 150, 225)]
                rows = [streams[layer].rows(s, 2) for s in starts]
                out = f.run(self.scratch, "decode_layer", "w8a8", params, {
                    **weights, **pools, **tables, "x_hc": f.joined(rows, 8, *rows[0].shape[1:]),
                    "position_ids": f.ints([q for s in starts for q in (s, s + 1)], 4, 2)})
                self.assertIsInstance(out, dict, out)
                self.assertEqual(out["x_next"].data, b"".join(streams[layer + 1].rows(s, 2).data for s in starts), (layer, starts))

    def far(self, layer, first):
        """Caches at a far position: pages that the visible ones share, but for those written."""
        ratio, pages, d = self.model.ratios[layer], first // 128 + 2, self.model.config["head_dim"]
        mine = range(first // 128, pages)
        table = f.ints([17 + i - first // 128 if i in mine else 1 + 7 * i % 16 for i in range(pages)], 1, pages)
        arrays = {"kv_cache": lively("BF16", 20, 128, 1, d), "block_table": table}
        if ratio:
            rows, wide = (4, 4 * d) if ratio == 4 else (8, 2 * d)
            states = 3 if ratio == 4 else 17
            arrays.update({"cmp_kv": lively("BF16", 20, 128 // ratio, 1, d), "cmp_table": table, "state": lively("F32", states + 1, rows, wide),
                           "state_table": f.ints([1 + i for i in range(states)], 1, states)})
        if ratio == 4:
            di = self.model.config["index_head_dim"]
            scales = lively("F32", 20, 32, 1, 1)
            arrays.update({"idx_kv_cache": lively("I8", 20, 32, 1, di), "idx_kv_scale": f.Array("F32", scales.shape, struct.pack(
                f"<{20 * 32}f", *[0.001 + abs(v) / 100 for v in scales.values()])), "idx_table": table,
                "inner_state": lively("F32", 4, 4, 4 * di), "inner_state_table": f.ints([1, 2, 3], 1, 3)})
        return arrays

    def test_far_starts_are_operators_in_a_row(self):
        random.seed(4)
        chain = op_chain.Chain(self.model, self.scratch, self)
        for first in (65535, 65536, 131071, 1048574):
            for layer in range(3):
                before, x = self.far(layer, first), lively("F32", 2, 4, self.model.config["hidden_size"])
                composed = f.run(self.scratch, f"decode_{op_chain.KINDS[self.model.ratios[layer]]}", "w8a8", chain.params(layer), {
                    **self.model.layer("w8a8", layer), **before, "x_hc": x, "position_ids": f.ints([first, first + 1], 1, 2)})
                self.assertIsInstance(composed, dict, composed)
                self.assertEqual(chain.decode(layer, x, [first, first + 1], before, composed).data, composed["x_out"].data, (first, layer))


if __name__ == "__main__":
    sys.exit(0 if unittest.main(exit=False).result.wasSuccessful() else 1)
