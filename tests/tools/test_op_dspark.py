# label: full
"""The operators of the DSpark point (v4-model.md appendix D), alone and composed, against a direct computation of
speculation.md section 2, in both profiles; 64 blocks of seven drafts in one call say what each says alone."""
import json
import os
import random
import struct
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.join(os.environ["QUIRE_SOURCE"], "tests", "support"))
import op_files as f
import v4_drafter

CONFIG = os.path.join(os.environ["QUIRE_SOURCE"], "tests", "data", "config", "v4-tiny-dspark-point.json")
PROFILES = {"ref": v4_drafter.Drafter, "w8a8": v4_drafter.Deployed}
PAGE = 32


def flat(rows):
    return [x for row in rows for x in (flat(row) if isinstance(row, (list, tuple)) else [row])]


def halves(values, *shape):
    bits = struct.unpack(f"<{len(values)}I", struct.pack(f"<{len(values)}f", *values))
    return f.Array("BF16", shape, struct.pack(f"<{len(values)}H", *[b >> 16 for b in bits]))


def floats(values, *shape):
    return f.Array("F32", shape, struct.pack(f"<{len(values)}f", *values))


class Point(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.scratch = cls.folder.name
        model = os.path.join(cls.scratch, "model")
        with open(CONFIG) as text:
            cls.config = json.load(text)
        subprocess.run([f.QUIRE, "synth", "--quiet", "--config", CONFIG, "--out", model, "--seed", "5"], check=True)
        cls.model = f.Model(model, cls.scratch)
        cls.direct = {p: kind(model, cls.config) for p, kind in PROFILES.items()}
        cls.random = random.Random(7)
        cls.params = {k: v for k, v in cls.config.items() if isinstance(v, (int, float)) and not isinstance(v, bool)}

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def normal(self, count):
        return v4_drafter.halves([self.random.gauss(0, 1) for _ in range(count)])

    def taps(self, count):
        width = 3 * self.config["hidden_size"]
        return [self.normal(width) for _ in range(count)]

    def op(self, name, profile, inputs, *options, **params):
        out = f.run(self.scratch, name, profile, {**self.params, **params}, inputs, None, *options)
        self.assertIsInstance(out, dict, (name, out))
        return out

    def refused(self, says, name, profile, inputs, *options):
        out = f.run(self.scratch, name, profile, self.params, inputs, None, *options)
        self.assertIsInstance(out, str, name)
        self.assertIn(says, out)

    def official(self, stage, *names):
        return {n: self.model.official[f"mtp.{stage}.{n}"] for n in names}

    def stored(self, name, stage=None):
        a = self.model.stored["mtp_" + name]
        return a if stage is None else a.rows(stage, 1).reshaped(*a.shape[1:])

    def stacked(self, *names):
        return f.joined(names, len(names), *names[0].shape)

    def same(self, found, wanted, what, dtype="BF16"):
        """Equal to the bit."""
        values = found.values()
        self.assertEqual(found.dtype, dtype, what)
        self.assertEqual(len(values), len(wanted), what)
        wrong = [i for i, (a, b) in enumerate(zip(values, wanted)) if a != b]
        self.assertEqual(wrong[:5], [], (what, [(values[i], wanted[i]) for i in wrong[:5]]))

    # ---- alone ----

    def test_taps_are_projected_and_normed(self):
        taps = self.taps(5)
        for profile, direct in self.direct.items():
            weights = (self.official(0, "main_proj.weight", "main_proj.scale", "main_norm.weight") if profile == "ref" else
                       {"main_proj_w": self.stored("main_proj_w"), "main_norm_w": self.stored("main_norm_w")})
            out = self.op("dspark_proj", profile, {"taps": halves(flat(taps), 5, len(taps[0])), **weights})
            self.same(out["main_x"], flat([direct.projected(u) for u in taps]), profile)

    def test_every_stage_makes_its_key_at_the_rows_position(self):
        d, positions = self.config["hidden_size"], [0, 3, 130, 7000]
        rows = [self.normal(d) for _ in positions]
        for profile, direct in self.direct.items():
            if profile == "ref":
                weights = {n: self.stacked(*[self.model.official[f"mtp.{s}.attn.{n}"] for s in range(3)])
                           for n in ("wkv.weight", "wkv.scale", "kv_norm.weight")}
            else:
                weights = {"wkv": self.stored("wkv"), "gamma_ckv": self.stored("gamma_ckv")}
            out = self.op("dspark_context_kv", profile, {"main_x": halves(flat(rows), len(rows), d), "position_ids": f.ints(positions), **weights},
                          max_position_embeddings=8192)
            wanted = [[direct.key(f"mtp.{s}.", x, p) for x, p in zip(rows, positions)] for s in range(3)]
            self.same(out["kv"], flat(wanted), profile)

    def markov(self):
        return {n: self.model.official[f"mtp.2.markov_head.{n}.weight"] for n in ("markov_w1", "markov_w2")}

    def test_a_token_adds_its_row_of_the_table_times_the_other(self):
        direct = self.direct["ref"]
        w1, w2 = (direct.plain(f"mtp.2.markov_head.markov_{n}.weight") for n in ("w1", "w2"))
        tokens = [0, 9, 262, 9]
        wanted = [[v4_drafter.single(v4_drafter.dot(w1[t], w)) for w in w2] for t in tokens]
        out = self.op("markov_head", "ref", {"tokens": f.ints(tokens), **self.markov()})
        self.same(out["logits"], flat(wanted), "bias", "F32")
        self.refused("bad token: row 1 holds token 263", "markov_head", "ref", {"tokens": f.ints([1, 263]), **self.markov()})

    def test_a_block_is_drafted_slot_by_slot(self):
        direct, d, vocab, width = self.direct["ref"], self.config["hidden_size"], self.config["vocab_size"], 7
        w1, w2 = (direct.plain(f"mtp.2.markov_head.markov_{n}.weight") for n in ("w1", "w2"))
        proj = direct.plain("mtp.2.confidence_head.proj.weight")[0]
        base = [[v4_drafter.singles([self.random.gauss(0, 2) for _ in range(vocab)]) for _ in range(width)] for _ in range(3)]
        hidden, anchors = [[self.normal(d) for _ in range(width)] for _ in range(3)], [4, 262, 17]
        ids, confidences = [], []
        for block, rows, before in zip(base, hidden, anchors):
            for u, h in zip(block, rows):
                logits = [v4_drafter.single(a + v4_drafter.single(v4_drafter.dot(w1[before], w))) for a, w in zip(u, w2)]
                confidences.append(v4_drafter.sigmoid(v4_drafter.dot(proj, list(h) + list(w1[before]))))
                before = max(range(vocab), key=lambda v: (logits[v], -v))
                ids.append(before)
        out = self.op("dspark_markov", "ref", {
            "base": floats(flat(base), 3, width, vocab), "anchors": f.ints(anchors), **self.markov(),
            "hidden": halves(flat(hidden), 3, width, d), "confidence_w": self.model.official["mtp.2.confidence_head.proj.weight"]})
        self.assertEqual(list(out["draft_ids"].values()), ids)
        for a, b in zip(out["confidence"].values(), confidences):
            self.assertAlmostEqual(a, b, 5)
        plain = self.op("dspark_markov", "ref", {"base": floats(flat(base), 3, width, vocab), "anchors": f.ints(anchors), **self.markov()})
        self.assertEqual(plain["draft_ids"].data, out["draft_ids"].data)
        self.assertNotIn("confidence", plain)

    def test_ranks_of_the_output_projection_change_no_bit(self):
        c, rows = self.config, 3
        heads, groups, rank = c["num_attention_heads"] * c["head_dim"], c["o_groups"], c["o_lora_rank"]
        o = [self.normal(heads) for _ in range(rows)]
        direct, width = self.direct["w8a8"], heads // groups
        low, high = direct.dense("mtp.1.attn.wo_a"), direct.channels("mtp.1.attn.wo_b")
        u = [v4_drafter.halves([v4_drafter.dot(w, x[n * groups // len(low) * width:][:width]) for n, w in enumerate(low)]) for x in o]
        weights = {"o": halves(flat(o), rows, heads), **{n: self.stored(n, 1) for n in ("wo_a", "wo_b", "wo_b_scale")}}
        for ranks in (1, 2):
            out = self.op("decode_o_proj", "w8a8", weights, "--ranks", str(ranks))
            part = groups * rank // ranks
            self.same(out["partial"], flat([[x[k * part:(k + 1) * part] for x in u] for k in range(ranks)]), ranks)
            self.same(out["gathered"], flat(u) * ranks, ranks)
            self.same(out["attn_out"], flat([v4_drafter.halves(high.times(*v4_drafter.int8(x))) for x in u]), ranks)
        self.refused("bad world: 2 groups of the output projection over 4 ranks", "decode_o_proj", "w8a8", weights, "--ranks", "4")

    def test_every_rank_gets_the_live_keys_of_all(self):
        d = self.config["head_dim"]
        rows = [[self.normal(d) for _ in range(3)] for _ in range(2)]
        kv = halves(flat(rows), 2, 3, d)
        out = self.op("prefill_kv_allgather", "w8a8", {"kv": kv})
        self.same(out["kv_all"], flat(rows) * 2, "all")
        out = self.op("prefill_kv_allgather", "w8a8", {"kv": kv, "num_tokens": f.ints([1, 3])})
        self.same(out["kv_all"], (flat(rows[0][:1] + rows[1]) + [0] * 2 * d) * 2, "some")
        self.refused("bad shape: num_tokens of rank 1 is 4", "prefill_kv_allgather", "w8a8", {"kv": kv, "num_tokens": f.ints([1, 4])})

    # ---- composed ----

    def pool(self, keys, pages):
        """Keys [request][position] in pages dealt out backwards, and the table."""
        d, count = self.config["head_dim"], len(keys)
        table = [[pages * count - 1 - (b * pages + i) for i in range(pages)] for b in range(count)]
        rows = [[0.0] * d for _ in range(pages * count * PAGE)]
        for b, own in enumerate(keys):
            for p, key in enumerate(own):
                rows[table[b][p // PAGE] * PAGE + p % PAGE] = key
        return halves(flat(rows), pages * count, PAGE, 1, d), f.ints(flat(table), count, pages)

    def test_the_rows_of_a_block_see_the_window_and_one_another(self):
        d, dim, width = self.config["hidden_size"], self.config["head_dim"], 3
        for profile, direct in self.direct.items():
            ends = (1, 45, 131)
            keys = [[self.normal(dim) for _ in range(n)] for n in ends]
            streams = [[[self.normal(d) for _ in range(4)] for _ in range(width)] for _ in ends]
            kv, table = self.pool(keys, 5)
            if profile == "ref":
                weights = {k[len("mtp.1."):]: v for k, v in self.model.official.items() if k.startswith("mtp.1.") and ".ffn." not in k and "hc_ffn" not in k}
                x = halves(flat(streams), len(ends) * width, 4, d)
            else:
                names = ("hc_attn_fn", "hc_attn_scale", "hc_attn_base", "attn_norm_w", "wq_a", "wq_b", "wq_b_scale", "wkv", "gamma_cq",
                         "gamma_ckv", "attn_sink", "wo_a", "wo_b", "wo_b_scale")
                weights, x = {n: self.stored(n, 1) for n in names}, floats(flat(streams), len(ends) * width, 4, d)
            inputs = {"x_hc": x, "position_ids": f.ints(list(ends)), "kv_cache": kv, "block_table": table, **weights}
            out = self.op("dspark_attention", profile, inputs)
            wanted = [direct.attention_half("mtp.1.", s, k[-128:], n) for s, k, n in zip(streams, keys, ends)]
            found, wanted = out["x_out"].values(), flat(wanted)
            wrong = sum(abs(a - b) > 1e-2 + 1e-2 * abs(b) for a, b in zip(found, wanted))
            self.assertEqual(len(found), len(wanted))
            self.assertLessEqual(wrong, 0.001 * len(wanted), profile)
            near = sum(abs(a - b) <= 1e-6 + 1e-6 * abs(b) for a, b in zip(found, wanted))  # a step of f32, none of bf16
            self.assertGreaterEqual(near, 0.9 * len(wanted), profile)
            self.assertEqual(out["kv_cache"].data, kv.data, profile)  # no key of a block is kept
            self.refused("bad table: block_table of request 2 has no page 1", "dspark_attention", profile,
                         {**inputs, "block_table": f.ints([-1 if i == 11 else v for i, v in enumerate(table.values())], 3, 5)})

    def drafter(self, profile, taps, starts, live, anchors, keys, pages):
        """The whole drafter on requests whose rings hold `keys` [request][stage][position]."""
        pools = [self.pool([own[s] for own in keys], pages) for s in range(3)]
        if profile == "ref":
            weights = {k: v for k, v in self.model.official.items() if k.startswith(("mtp.", "embed.", "head."))}
        else:
            weights = {k: v for k, v in self.model.stored.items() if k.startswith(("mtp_", "embed_", "lm_head_"))}
        rows, width = len(taps[0]), len(taps[0][0])
        positions = [n + i for n in starts for i in range(rows)]
        return self.op("dspark_drafter", profile, {
            "taps": halves(flat(taps), len(taps), rows, width), "position_ids": f.ints(positions, len(taps), rows), "num_tokens": f.ints(live),
            "anchors": f.ints(anchors), "kv_cache": self.stacked(*[p[0] for p in pools]), "block_table": pools[0][1], **weights})

    def test_the_drafter_is_the_direct_one(self):
        exact = blocks = 0
        for profile, direct in self.direct.items():
            before = self.taps(43)
            old, starts, live, anchors = direct.context(before), (0, 43), (3, 8), (11, 200)
            taps = [self.taps(8) for _ in starts]
            keys = [[[] for _ in range(3)], old]
            out = self.drafter(profile, taps, starts, live, anchors, keys, 3)
            for b, (first, count) in enumerate(zip(starts, live)):
                fresh = direct.context(taps[b][:count], first)
                hidden, base, logits, tokens, confidence = direct.draft([o + n for o, n in zip(keys[b], fresh)], anchors[b])
                at = lambda name, size: out[name].values()[b * 7 * size:(b + 1) * 7 * size]
                self.assertEqual(list(at("draft_ids", 1)), tokens, (profile, b))
                blocks += 1
                exact += list(at("hidden", len(hidden[0]))) == flat(hidden)
                for a, c in zip(at("confidence", 1), confidence):
                    self.assertAlmostEqual(a, v4_drafter.sigmoid(c), 1, (profile, b))
                cache = out["kv_cache"].values()
                d, pages = self.config["head_dim"], 6
                for s in range(3):
                    for i, key in enumerate(fresh[s]):
                        p = first + i
                        row = (s * pages + 5 - b * 3 - p // PAGE) * PAGE + p % PAGE
                        self.assertEqual(list(cache[row * d:(row + 1) * d]), key, (profile, b, s, i))
        self.assertGreaterEqual(exact, 0.5 * blocks)

    def test_sixty_four_blocks_in_one_call_are_what_each_is_alone(self):
        for profile, direct in self.direct.items():
            count, rows = 64, 8
            taps = [self.taps(rows) for _ in range(count)]
            live, anchors = [1 + b % rows for b in range(count)], [(b * 37) % 263 for b in range(count)]
            none = [[[], [], []]] * count
            whole = self.drafter(profile, taps, [0] * count, live, anchors, none, 1)
            self.assertEqual(whole["draft_ids"].shape, [64, 7])
            for b in (0, 7, 31, 63):
                alone = self.drafter(profile, taps[b:b + 1], [0], live[b:b + 1], anchors[b:b + 1], none[:1], 1)
                for name in ("hidden", "base", "logits", "draft_ids", "confidence"):
                    self.assertEqual(whole[name].rows(b, 1).data, alone[name].data, (profile, b, name))


if __name__ == "__main__":
    sys.exit(0 if unittest.main(exit=False).result.wasSuccessful() else 1)
