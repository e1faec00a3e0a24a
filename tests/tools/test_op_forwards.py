# label: release
"""Whole forwards and the MTP layer by quire op (operators 24, 34, 37, 38, 39): the bits of the model's own forward."""
import json
import os
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.join(os.environ["QUIRE_SOURCE"], "tests", "support"))
import op_files as f

FOLDER = os.path.join(os.environ["QUIRE_SOURCE"], "tests", "golden", "v4", "tiny")
PAGES = 3


class Pools:
    """The flat pools of every layer (v4-model.md 7.5), and of the MTP layer, for the requests of one rank."""

    def __init__(self, model, profile, requests=1):
        ratios = model.ratios[:model.layers]
        each = {r: f.Caches(model, r, profile, requests, PAGES).arrays for r in (0, 4, 128)}
        stack = lambda ratio, name, n: f.joined([each[ratio][name]] * n, n * each[ratio][name].shape[0], *each[ratio][name].shape[1:])
        csa, hca = ratios.count(4), ratios.count(128)
        self.arrays = {"kv_cache": stack(0, "kv_cache", len(ratios)), "mtp_kv_cache": each[0]["kv_cache"],
                       "hca_cmp_kv": stack(128, "cmp_kv", hca), "hca_compress_state": stack(128, "state", hca),
                       "csa_cmp_kv": stack(4, "cmp_kv", csa), "csa_compress_state": stack(4, "state", csa),
                       "idx_kv_cache": stack(4, "idx_kv_cache", csa), "csa_inner_compress_state": stack(4, "inner_state", csa)}
        if profile == "w8a8":
            self.arrays["idx_kv_scale"] = stack(4, "idx_kv_scale", csa)
        self.tables = {"block_table": each[0]["block_table"], "hca_state_table": each[128]["state_table"],
                       "csa_state_table": each[4]["state_table"], "csa_inner_state_table": each[4]["inner_state_table"]}

    def inputs(self, prefill, mtp=False):
        tables = {k: v.reshaped(v.shape[1]) if prefill else v for k, v in self.tables.items()}
        return {**{k: v for k, v in self.arrays.items() if mtp or k != "mtp_kv_cache"}, **tables}

    def take(self, outputs):
        for name in self.arrays:
            if name in outputs:
                self.arrays[name] = outputs[name]


class Forwards(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.scratch = cls.folder.name
        cls.model = f.Model(os.path.join(FOLDER, "model"), cls.scratch)
        with open(os.path.join(FOLDER, "cases.json")) as text:
            cls.ids = next(c["ids"] for c in json.load(text)["cases"] if c["name"] == "t130")
        cls.traces = {p: cls.trace(p, cls.ids) for p in ("w8a8", "ref")}

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    @classmethod
    def trace(cls, profile, ids):
        """What the model's own forward says at every position."""
        tokens, out = os.path.join(cls.scratch, "tokens.json"), os.path.join(cls.scratch, "trace.safetensors")
        with open(tokens, "w") as text:
            json.dump({"tokens": ids}, text)
        subprocess.run([f.QUIRE, "trace", "--model", os.path.join(FOLDER, "model"), "--tokens", tokens, "--out", out, "--want",
                        "logits,streams,mtp", "--profile", {"ref": "reference"}.get(profile, profile)], check=True, capture_output=True)
        return f.read(out)[0]

    def op(self, name, profile, inputs, weights=True, **params):
        stored = {k: v for k, v in self.model.stored.items() if k not in ("freqs_cos", "freqs_sin")}
        if name.endswith("_mtp") and name != "decode_fwd_mtp":
            weights = {**self.model.layer(profile, 4, mtp=True), "lm_head_weight": self.model.official["head.weight"]}
        elif weights:
            weights = stored if profile == "w8a8" else self.model.official
        out = f.run(self.scratch, name, profile, {**self.model.config, **params}, {**weights, **inputs})
        self.assertIsInstance(out, dict, out)
        return out

    def prefill(self, profile, pools, first, count, rows=None, **more):
        inputs = {**pools.inputs(True), "input_ids": f.ints(self.ids[first:first + count]),
                  "position_ids": f.ints(list(range(first, first + count))), **more}
        if rows is not None:
            inputs["logit_row_indices"] = f.ints(rows)
        out = self.op("prefill_fwd", profile, inputs)
        pools.take(out)
        return out

    def streams(self, profile, positions):
        """Of the trace, in the profile's format."""
        a = self.traces[profile][f"layers.{self.model.layers - 1}.streams"]
        return b"".join(a.rows(p, 1).data for p in positions)

    def test_a_prompt_has_the_bits_of_the_models_forward(self):
        for profile in ("w8a8", "ref"):
            out = self.prefill(profile, Pools(self.model, profile), 0, 130, [0, 1, 3, 63, 127, 128, 129, -1])
            logits = self.traces[profile]["logits"]
            for k, row in enumerate((0, 1, 3, 63, 127, 128, 129)):
                self.assertEqual(out["logits"].rows(k, 1).data, logits.rows(row, 1).data, (profile, row))
                values = logits.rows(row, 1).values()
                self.assertEqual(out["sampled_ids"].values()[8 * k], values.index(max(values)))
            self.assertEqual(set(out["logits"].rows(7, 1).data), {0})
            if profile == "w8a8":
                self.assertEqual(out["tail_states"].data, self.streams(profile, range(2, 130)))

    def test_a_decode_step_has_the_bits_of_the_models_forward(self):
        for profile in ("w8a8", "ref"):
            for first in (1, 6, 126, 128):
                pools = Pools(self.model, profile)
                self.prefill(profile, pools, 0, first)
                out = self.op("decode_fwd", profile, {**pools.inputs(False), "input_ids": f.ints(self.ids[first:first + 2]),
                                                      "position_ids": f.ints([first, first + 1], 1, 2)})
                for k in range(2):
                    self.assertEqual(out["logits"].rows(k, 1).data, self.traces[profile]["logits"].rows(first + k, 1).data, (profile, first, k))
                if profile == "w8a8":
                    self.assertEqual(out["pre_hc_hidden"].data, self.streams(profile, (first, first + 1)))

    def test_standalone_operators_lead_from_streams_to_hidden_rows(self):
        for profile in ("w8a8", "ref"):
            pools = Pools(self.model, profile)
            self.prefill(profile, pools, 0, 40)
            out = self.op("decode_fwd", profile, {**pools.inputs(False), "input_ids": f.ints(self.ids[40:42]), "position_ids": f.ints([40, 41], 1, 2)})
            official = self.model.official
            head = {"fn": official["hc_head_fn"], "scale": official["hc_head_scale"], "base": official["hc_head_base"], "x": out["pre_hc_hidden"]}
            y = f.run(self.scratch, "hc_head", profile, self.model.config, head)["y"]
            normed = f.run(self.scratch, "rmsnorm", profile, self.model.config, {"x": y, "w": official["norm.weight"]})["x_normed"]
            self.assertEqual(normed.data, out["hidden"].data, profile)

    def test_vocabulary_shards_and_ranks_change_no_bit(self):
        one = self.prefill("w8a8", Pools(self.model, "w8a8"), 0, 9)
        pools = Pools(self.model, "w8a8").inputs(True)
        two = self.op("prefill_fwd", "w8a8", {
            **{k: f.joined([v, v], 2, *v.shape) for k, v in pools.items()}, "input_ids": f.ints(self.ids[:9] * 2, 2, 9),
            "position_ids": f.ints(list(range(9)) * 2, 2, 9), "num_tokens": f.ints([9, 0])}, tp=2)
        row = 4 * self.model.config["vocab_size"]
        self.assertEqual(two["logits"].data[:row], one["logits"].data[:row])
        self.assertEqual(set(two["logits"].data[8 * row:]), {0})
        self.assertEqual(two["hidden"].data, one["hidden"].data + bytes(len(one["hidden"].data)))

    def mtp_inputs(self, profile, first, count):
        """Streams of positions from `first` on, and the embeddings of the tokens that follow them."""
        embed = self.model.official["embed.weight"]
        d = self.model.config["hidden_size"]
        pools = Pools(self.model, profile)
        states = []
        for at in range(0, first + count, 100):
            out = self.prefill(profile, pools, at, min(100, first + count - at))
            states.append(out["tail_states"].rows(0, min(100, first + count - at)))
        state = f.joined(states, first + count, *states[0].shape[1:])
        hidden = f.joined([embed.rows(self.ids[p + 1], 1) for p in range(first, first + count)], count, d)
        return state.rows(first, count), hidden

    def test_the_mtp_layer_has_the_bits_of_the_models_drafter(self):
        """The last 128 rows of a prompt, then two more."""
        for profile in ("w8a8", "ref"):
            wanted = self.traces[profile]["mtp_logits"]
            state, hidden = self.mtp_inputs(profile, 0, 129)
            cache = f.Caches(self.model, 0, profile, 1, PAGES)
            out = self.op("prefill_mtp", profile, {**cache.inputs(True), "prev": state.rows(0, 127), "hidden": hidden.rows(0, 127),
                                                   "position_ids": f.ints(list(range(127))), "logit_row_indices": f.ints([0, 1, 2, 3, 64, 125, 126, -1])})
            for k, row in enumerate((0, 1, 2, 3, 64, 125, 126)):
                self.assertEqual(out["logits"].rows(k, 1).data, wanted.rows(row, 1).data, (profile, row))
            cache.take(out)
            out = self.op("decode_mtp", profile, {**cache.inputs(False), "prev": state.rows(127, 2), "hidden": hidden.rows(127, 2),
                                                  "position_ids": f.ints([127, 128], 1, 2)})
            for k in range(2):
                self.assertEqual(out["logits"].rows(k, 1).data, wanted.rows(127 + k, 1).data, (profile, k))

    def test_drafting_emits_what_greedy_decoding_does(self):
        """Two requests from prompts of another length; the drafts of one are right at first, as an oracle says: every token is the choice of the model's own
        forward over what came before, every draft that of its MTP layer."""
        for profile in ("w8a8", "ref"):
            self.follow_drafts(profile, (5, 30), 6)

    def follow_drafts(self, profile, lengths, steps):
        pools, texts, slots = Pools(self.model, profile, 2), [self.ids[:n] for n in lengths], []
        for b, n in enumerate(lengths):
            tables = {k: v.rows(b, 1).reshaped(v.shape[1]) for k, v in pools.tables.items()}
            out = self.op("prefill_fwd", profile, {**{k: v for k, v in pools.arrays.items() if k != "mtp_kv_cache"}, **tables,
                                                   "input_ids": f.ints(texts[b]), "position_ids": f.ints(list(range(n)))})
            pools.take(out)
            tail = out["sampled_ids"].values()[0]
            embed = self.model.official["embed.weight"]
            mtp = self.op("prefill_mtp", profile, {
                "kv_cache": pools.arrays["mtp_kv_cache"], "block_table": tables["block_table"], "prev": out["tail_states"].rows(0, n),
                "hidden": f.joined([embed.rows(t, 1) for t in texts[b][1:] + [tail]], n, embed.shape[1]),
                "position_ids": f.ints(list(range(n)))})
            pools.arrays["mtp_kv_cache"] = mtp["kv_cache"]
            draft = mtp["sampled_ids"].values()[0]
            slots.append({"tail": tail, "draft": draft, "pos": n - 1, "state": out["tail_states"].rows(n - 1, 1)})
            texts[b] = texts[b] + [tail]
        state = {"slot_valid": f.Array("U8", [3], b"\1\0\1"), "slot_generation": f.ints([4, 0, 9]),
                 "slot_tail": f.ints([slots[1]["tail"], 0, slots[0]["tail"]]), "slot_draft": f.ints([slots[1]["draft"], 0, slots[0]["draft"]]),
                 "slot_tail_pos": f.ints([slots[1]["pos"], 0, slots[0]["pos"]]), "slot_committed": f.ints([0, 0, 0]),
                 "slot_pool": f.joined([slots[1]["state"], f.zeros(slots[0]["state"].dtype, *slots[0]["state"].shape), slots[0]["state"]],
                                       3, *slots[0]["state"].shape[1:])}
        width = self.model.config["vocab_size"]
        best = lambda a, row: max(range(width), key=lambda v: (a.values()[row * width + v], -v))
        drafts, accepted_seen = [[], []], set()
        for step in range(steps):
            if step < 3:
                right = best(self.trace(profile, texts[0])["logits"], len(texts[0]) - 1)
                state["slot_draft"] = f.ints([state["slot_draft"].values()[0], 0, right])
            out = self.op("decode_fwd_mtp", profile, {**pools.inputs(False, mtp=True), **state, "slot_ids": f.ints([2, 0]),
                                                      "request_generation": f.ints([9, 4])})
            pools.take(out)
            for b, slot in enumerate((2, 0)):
                accepted = out["accepted"].values()[b]
                accepted_seen.add(accepted)
                chosen = out["sampled_ids"].values()[16 * b:16 * b + 16:8]
                texts[b] = texts[b] + list(chosen[:accepted])
                self.assertEqual(out["slot_tail"].values()[slot], texts[b][-1])
                self.assertEqual(out["slot_tail_pos"].values()[slot], len(texts[b]) - 2)
                drafts[b].append((len(texts[b]) - 2, out["slot_draft"].values()[slot]))
            self.assertEqual(out["slot_committed"].values()[1], 0)
            state.update({k: out[k] for k in ("slot_tail", "slot_draft", "slot_tail_pos", "slot_committed", "slot_pool")})
        self.assertEqual(accepted_seen, {1, 2})
        for b, n in enumerate(lengths):
            trace = self.trace(profile, texts[b])
            for at in range(n, len(texts[b])):
                self.assertEqual(texts[b][at], best(trace["logits"], at - 1), (profile, b, at))
            for at, draft in drafts[b]:
                if at < len(texts[b]) - 1:
                    self.assertEqual(draft, best(trace["mtp_logits"], at), (profile, b, at))

    def assert_refused(self, says, op, inputs, params=None):
        weights = {k: v for k, v in self.model.stored.items() if k not in ("freqs_cos", "freqs_sin")}
        out = f.run(self.scratch, op, "w8a8", {**self.model.config, **(params or {})}, {**weights, **inputs})
        self.assertIsInstance(out, str)
        self.assertIn(says, out)

    def test_what_is_out_of_range_is_refused_by_its_rule(self):
        pools = Pools(self.model, "w8a8")
        good = {**pools.inputs(False), "input_ids": f.ints([5, 6]), "position_ids": f.ints([0, 1], 1, 2)}
        self.assert_refused("bad token: row 1 holds token 999", "decode_fwd", {**good, "input_ids": f.ints([5, 999])})
        self.assert_refused("bad shape: logit_row_indices of rank 0 entry 0 is 2", "decode_fwd",
                            {**good, "logit_row_indices": f.ints([2] + [-1] * 7)})
        self.assert_refused("bad world: 3 vocabulary shards", "decode_fwd", good, {"tp": 3})
        self.assert_refused("bad world: 1 ranks in groups of 2", "decode_fwd", good, {"tp": 2})
        self.assert_refused("compress_ratios", "decode_fwd", good, {"compress_ratios": [0, 4, 128, 4]})
        self.assert_refused("bad table: block_table of request 0 has no page 0", "decode_fwd", {**good, "block_table": f.ints([-1, 0, 1], 1, 3), "position_ids": f.ints([4, 5], 1, 2)})
        self.assert_refused("bad shape: in.kv_cache has", "decode_fwd", {**good, "kv_cache": f.zeros("BF16", 5, 128, 1, 128)})
        slots = {"slot_valid": f.Array("U8", [1], b"\1"), "slot_generation": f.ints([4]), "slot_tail": f.ints([3]), "slot_draft": f.ints([4]),
                 "slot_tail_pos": f.ints([0]), "slot_committed": f.ints([0]), "slot_pool": f.zeros("F32", 1, 4, 128)}
        step = {**pools.inputs(False, mtp=True), **slots, "slot_ids": f.ints([0]), "request_generation": f.ints([4])}
        self.op("decode_fwd_mtp", "w8a8", step)
        self.assert_refused("stale slot", "decode_fwd_mtp", {**step, "request_generation": f.ints([5])})
        self.assert_refused("bad slot", "decode_fwd_mtp", {**step, "slot_ids": f.ints([1])})
        self.assert_refused("bad slot", "decode_fwd_mtp", {**step, "slot_valid": f.Array("U8", [1], b"\0")})
        self.assert_refused("bad position: slot_tail_pos of slot 0 is -1", "decode_fwd_mtp", {**step, "slot_tail_pos": f.ints([-1])})
        self.assert_refused("bad token", "decode_fwd_mtp", {**step, "slot_draft": f.ints([264])})


if __name__ == "__main__":
    sys.exit(0 if unittest.main(exit=False).result.wasSuccessful() else 1)
