# label: once
"""quire verify on broken copies of the bundled models: every defect is named, and sound ones pass."""
import hashlib
import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest

QUIRE = os.environ["QUIRE_PROGRAM"]
MODELS = os.path.join(os.environ["QUIRE_SOURCE"], "models")


def quire(*line):
    done = subprocess.run([QUIRE, *line], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    return done.returncode, done.stdout, done.stderr


class Copy:
    """A copy of a model in a folder of its own, to be broken."""

    def __init__(self, test, model):
        holder = tempfile.TemporaryDirectory()
        test.addCleanup(holder.cleanup)
        self.outside, self.dir = holder.name, os.path.join(holder.name, "model")
        shutil.copytree(model if os.path.isabs(model) else os.path.join(MODELS, model), self.dir)

    def path(self, name):
        return os.path.join(self.dir, name)

    def shards(self):
        return sorted(n for n in os.listdir(self.dir) if n.endswith(".safetensors"))

    def tensor(self, name):
        """The shard of a tensor, where its data begins in the file, and what the header says."""
        for shard in self.shards():
            with open(self.path(shard), "rb") as f:
                size = struct.unpack("<Q", f.read(8))[0]
                header = json.loads(f.read(size))
            if name in header:
                return shard, 8 + size + header[name]["data_offsets"][0], header[name]
        raise KeyError(name)

    def poke(self, name, at, data):
        shard, begin, about = self.tensor(name)
        with open(self.path(shard), "r+b") as f:
            f.seek(begin + at)
            f.write(data)
        return shard, about

    def rename(self, name, to):
        """Another name for a tensor, in its shard's header and in the index."""
        shard, _, _ = self.tensor(name)
        with open(self.path(shard), "rb") as f:
            size = struct.unpack("<Q", f.read(8))[0]
            header, data = json.loads(f.read(size)), f.read()
        text = json.dumps({to if key == name else key: value for key, value in header.items()}).encode()
        text += b" " * (-len(text) % 8)
        with open(self.path(shard), "wb") as f:
            f.write(struct.pack("<Q", len(text)) + text + data)
        index = self.read(INDEX)
        index["weight_map"][to] = index["weight_map"].pop(name)
        self.write(INDEX, index)

    def read(self, name):
        with open(self.path(name)) as f:
            return json.load(f)

    def write(self, name, value):
        with open(self.path(name), "w") as f:
            json.dump(value, f)

    def sums(self, leave_out=()):
        """Checksums of the folder as it is, in a file outside of it."""
        out = os.path.join(self.outside, "sums")
        with open(out, "w") as f:
            for i, name in enumerate(sorted(os.listdir(self.dir))):
                if name not in leave_out:
                    with open(self.path(name), "rb") as data:
                        digest = hashlib.sha256(data.read()).hexdigest()
                    print(digest + (" *" if i % 2 else "  ") + name, file=f)
        return out

    def verify(self, *more):
        """Exit status, defects, standard error."""
        status, out, err = quire("verify", "--model", self.dir, "--files-only", "--json", *more)
        return status, json.loads(out)["files"]["defects"] if out else None, err


INDEX = "model.safetensors.index.json"
SCALE = "layers.3.attn.wq_b.scale"


class Verify(unittest.TestCase):
    def expect(self, copy, *wanted, status=1, more=()):
        found_status, defects, err = copy.verify(*more)
        self.assertEqual(len(defects), len(wanted), defects)
        for defect, words in zip(defects, wanted):
            for word in words:
                self.assertIn(word, defect)
        self.assertEqual(found_status, status, err)
        self.assertEqual(err.count("\n"), 1, err)

    def test_sound_folders_pass_with_and_without_checksums(self):
        for model in ("tiny-v41", "tiny-v4"):
            copy = Copy(self, model)
            self.assertEqual(copy.verify(), (0, [], ""))
            self.assertEqual(copy.verify("--checksums", copy.sums()), (0, [], ""))
            status, out, err = quire("verify", "--model", copy.dir, "--files-only")
            self.assertEqual((status, err), (0, ""))
            self.assertIn("the files are sound", out)

    def test_a_scale_of_255_is_named_wherever_it_stands(self):
        copy = Copy(self, "tiny-v41")
        shard, about = copy.poke(SCALE, 5, b"\xff")
        self.assertEqual(about["dtype"], "F8_E8M0")
        self.expect(copy, (shard, SCALE, "255 (NaN)", "index 5", "wanted 0 to 254"))
        tables = [n for n in copy.read(INDEX)["weight_map"] if n.endswith("engram.embed.scale")]
        last = copy.tensor(tables[-1])[2]["data_offsets"]
        last = last[1] - last[0] - 1
        table, _ = copy.poke(tables[-1], last, b"\xff")
        status, defects, _ = copy.verify()
        self.assertEqual((status, len(defects)), (1, 2))
        self.assertTrue(any(table in d and tables[-1] in d and f"index {last}" in d for d in defects), defects)

    def test_codes_and_numbers_that_are_none_are_named(self):
        copy = Copy(self, "tiny-v4")
        for at, code in ((7, b"\x7f"), (9, b"\xff")):
            shard, about = copy.poke("layers.0.attn.wq_b.weight", at, code)
        self.assertEqual(about["dtype"], "F8_E4M3")
        self.expect(copy, (shard, "layers.0.attn.wq_b.weight", "0x7f (NaN)", "index 7"), ("0xff (NaN)", "index 9"))
        copy = Copy(self, "tiny-v4")
        copy.poke("layers.1.attn_norm.weight", 6, b"\x80\xff")
        copy.poke("layers.1.attn.attn_sink", 4, struct.pack("<f", float("nan")))
        status, defects, _ = copy.verify()
        self.assertEqual((status, len(defects)), (1, 2))
        text = "\n".join(defects)
        self.assertIn("layers.1.attn_norm.weight: BF16 -infinity at index 3", text)
        self.assertIn("layers.1.attn.attn_sink: F32 NaN at index 1", text)

    def test_a_tensor_full_of_nothing_is_told_and_counted(self):
        copy = Copy(self, "tiny-v41")
        name = "layers.3.ffn.experts.0.w1.scale"
        _, _, about = copy.tensor(name)
        size = about["data_offsets"][1] - about["data_offsets"][0]
        self.assertGreater(size, 64)
        copy.poke(name, 0, b"\xff" * size)
        status, defects, _ = copy.verify()
        self.assertEqual((status, len(defects)), (1, 65))
        self.assertIn(f"{size - 64} more such values", defects[-1])

    def test_hash_tables_hold_experts_that_exist_once(self):
        copy, name = Copy(self, "tiny-v4"), "layers.0.ffn.gate.tid2eid"
        shard, about = copy.poke(name, 0, b"")
        active, last = about["shape"][1], about["shape"][0] - 1
        self.assertEqual(about["dtype"], "I64")
        copy.poke(name, 8 * (active * 3), struct.pack("<q", -1))
        copy.poke(name, 8 * (active * last), struct.pack("<q", 1 << 40))
        copy.poke(name, 8 * (active * 5), struct.pack("<qq", 2, 2))
        self.expect(copy, (shard, name, "token 3 ", "expert -1", "wanted 0 to"), ("token 5 ", "expert 2 twice"),
                    (f"token {last} ", f"expert {1 << 40}"))

    def test_a_shard_that_cannot_be_read_hides_nothing_else(self):
        copy = Copy(self, "tiny-v41")
        shard, _ = copy.poke(SCALE, 5, b"\xff")
        whole = [s for s in copy.shards() if s != shard]
        os.truncate(copy.path(whole[0]), os.path.getsize(copy.path(whole[0])) - 1)
        os.remove(copy.path(whole[1]))
        self.expect(copy, (whole[0], "truncated"), (whole[1], "cannot open"), (shard, SCALE, "255 (NaN)"))
        os.truncate(copy.path(whole[0]), 6)
        self.expect(copy, (whole[0], "6 bytes"), (whole[1],), (SCALE,))

    def test_names_that_the_index_does_not_have_are_told(self):
        copy = Copy(self, "tiny-v41")
        names = copy.read(INDEX)
        names["weight_map"]["layers.0.nothing.weight"] = names["weight_map"].pop(SCALE)
        copy.write(INDEX, names)
        self.expect(copy, (SCALE, "not listed by the index"), (SCALE, "missing"))

    def test_a_config_that_breaks_a_rule_is_refused(self):
        copy = Copy(self, "tiny-v41")
        config = copy.read("config.json")
        config["architectures"] = ["SomethingElse"]
        copy.write("config.json", config)
        self.expect(copy, ("E01",), status=3)

    def test_a_tokenizer_that_run_refuses_is_a_defect(self):
        copy = Copy(self, "tiny-v41")
        whole = copy.read("tokenizer.json")
        for broken, word in (("", "tokenizer.json"), ("{", "tokenizer.json"), ("{}", "tokenizer.json"), (None, "cannot open")):
            if broken is None:
                os.remove(copy.path("tokenizer.json"))
            else:
                with open(copy.path("tokenizer.json"), "w") as f:
                    f.write(broken)
            self.expect(copy, ("tokenizer.json", word))
            status, out, err = quire("run", "--model", copy.dir, "hello")
            self.assertEqual((status, out), (1, ""))
            self.assertIn("tokenizer.json", err)
        vocab = copy.read("config.json")["text_config"]["vocab_size"]
        copy.write("tokenizer.json", {**whole, "added_tokens": [*whole["added_tokens"],
                                                                {**whole["added_tokens"][-1], "id": vocab, "content": "<one more>"}]})
        self.expect(copy, ("tokenizer.json", f"ids up to {vocab}"))
        config = copy.read("config.json")
        config["text_config"]["engram_compressed_vocab_size"] -= 1
        copy.write("tokenizer.json", whole)
        copy.write("config.json", config)
        self.expect(copy, ("keys", "engram_compressed_vocab_size"))
        os.remove(copy.path("config.json"))
        os.remove(copy.path("tokenizer.json"))
        self.expect(copy, ("config.json",), ("tokenizer.json", "cannot open"))

    def test_a_generation_config_that_run_refuses_is_a_defect(self):
        for model in ("tiny-v41", "tiny-v4"):
            copy = Copy(self, model)
            for broken in ("", "{", "[]", '{"temperature": 3}', '{"top_p": "x"}', '{"eos_token_id": 1000000000}'):
                with open(copy.path("generation_config.json"), "w") as f:
                    f.write(broken)
                self.expect(copy, ("generation_config.json",))
                self.assertEqual(quire("run", "--model", copy.dir, "hello")[0], 1)
            os.remove(copy.path("generation_config.json"))
            self.assertEqual(copy.verify(), (0, [], ""))  # none is needed

    def test_whoever_needs_the_tokenizer_names_the_missing_file(self):
        copy = Copy(self, "tiny-v41")
        os.remove(copy.path("tokenizer.json"))
        status, out, err = quire("verify", "--model", copy.dir)
        self.assertEqual((status, err.count("\n")), (1, 1))
        self.assertIn("tokenizer.json: cannot open", out)
        tokens = os.path.join(copy.outside, "tokens.json")
        with open(tokens, "w") as f:
            f.write('{"tokens": [1, 2, 3]}')
        status, out, err = quire("trace", "--model", copy.dir, "--tokens", tokens, "--out", tokens + ".safetensors")
        self.assertEqual((status, err.count("\n")), (1, 1))
        self.assertIn("tokenizer.json: cannot open", err)
        self.assertFalse(os.path.exists(tokens + ".safetensors"))
        status, out, err = quire("inspect", "--model", copy.dir)
        self.assertEqual((status, err), (0, ""))
        self.assertIn(f"tokenizer: {copy.path('tokenizer.json')}: cannot open", out)
        status, out, err = quire("inspect", "--model", copy.dir, "--json")
        self.assertIn("cannot open", json.loads(out)["tokenizer"]["defect"])
        described = json.loads(quire("inspect", "--model", f"{MODELS}/tiny-v41", "--json")[1])["tokenizer"]
        self.assertEqual(described, {"sound": True, "ids": 4096})

    def test_names_from_files_stay_on_their_line(self):
        evil, shown = "evil\n\x1b[31m\u202e\u009bname", "evil\\n\\x1b[31m\\u202e\\u009bname"
        copy = Copy(self, "tiny-v41")
        copy.rename(SCALE, evil)
        tokens = os.path.join(copy.outside, "tokens.json")
        with open(tokens, "w") as f:
            f.write('{"tokens": [1, 2, 3]}')
        for line in (("run", "--model", copy.dir, "hello"), ("verify", "--model", copy.dir, "--files-only"),
                     ("trace", "--model", copy.dir, "--tokens", tokens, "--out", tokens + ".safetensors"), ("inspect", "--model", copy.dir)):
            status, out, err = quire(*line)
            self.assertEqual(status, 0 if line[0] == "inspect" else 1, err)
            for bad in ("\x1b", "\u202e", "\u009b", "\nname"):
                self.assertNotIn(bad, out + err, line)
            self.assertLessEqual(err.count("\n"), 1, err)
            if line[0] in ("verify", "inspect"):
                self.assertIn(shown, out, line)
        names = json.loads(quire("inspect", "--model", copy.dir, "--json")[1])["tensors"]["unexpected"]["names"]
        self.assertEqual(names, [evil])
        for option in ("--want", "--kv-cache-dtype"):
            status, out, err = quire("trace", "--model", copy.dir, "--tokens", tokens, "--out", tokens, option, evil)
            self.assertEqual((status, err.count("\n")), (2, 2))
            self.assertIn(shown, err)

    def test_scales_of_an_int8_folder_are_finite(self):
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        made = os.path.join(holder.name, "w8a8")
        self.assertEqual(quire("quantize", "--w8a8", "--model", f"{MODELS}/tiny-v4", "--out", made, "--quiet")[0], 0)
        copy = Copy(self, made)
        status, out, err = quire("verify", "--model", copy.dir, "--json")
        self.assertEqual(status, 0, err)
        self.assertEqual(json.loads(out)["machine"]["profile"], "w8a8")
        copy.poke("wq_b_scale", 8, struct.pack("<f", float("inf")))
        self.expect(copy, ("wq_b_scale", "F32 infinity", "index 2"))

    def test_one_flipped_bit_is_seen_with_checksums_alone(self):
        copy = Copy(self, "tiny-v41")
        sums = copy.sums()
        shard, about = copy.poke("layers.2.ffn.experts.1.w1.weight", 100, b"")
        self.assertEqual(about["dtype"], "I8")
        _, begin, _ = copy.tensor("layers.2.ffn.experts.1.w1.weight")
        with open(copy.path(shard), "r+b") as f:
            f.seek(begin + 100)
            byte = f.read(1)[0]
            f.seek(begin + 100)
            f.write(bytes([byte ^ 1]))
        self.assertEqual(copy.verify()[0], 0)
        self.expect(copy, (shard, "SHA-256 is", "wanted"), more=("--checksums", sums))

    def test_a_list_and_a_folder_that_differ_are_told(self):
        copy = Copy(self, "tiny-v41")
        sums = copy.sums(leave_out=("tokenizer.json",))
        with open(sums, "a") as f:
            print("0" * 64 + "  absent.safetensors", file=f)
            print("0" * 64 + "  ../secret", file=f)
            print("0" * 64 + "  /etc/hostname", file=f)
            print("0" * 64 + "  a/../../b", file=f)
            print("0" * 63 + "  config.json", file=f)
            print("0" * 64 + "  config.json", file=f)
        self.expect(copy, ("line 10 ", "../secret", "file of the folder"), ("line 11 ", "/etc/hostname"), ("line 12 ", "a/../../b"),
                    ("line 13 ", "64 hexadecimal"), ("line 14 ", "config.json", "already"), ("absent.safetensors", "cannot open"),
                    ("does not name tokenizer.json",), more=("--checksums", sums))
        status, _, err = quire("verify", "--model", copy.dir, "--files-only", "--checksums", copy.path("absent"))
        self.assertEqual(status, 1)
        self.assertIn("absent", err)

    def test_options_of_the_machine_say_nothing_to_files_alone(self):
        for option in (("--device", "cpu"), ("--profile", "reference")):
            status, out, err = quire("verify", "--model", f"{MODELS}/tiny-v41", "--files-only", *option)
            self.assertEqual((status, out), (2, ""))
            self.assertIn(f"{option[0]} says nothing to --files-only", err)

    def test_the_bundled_models_pass_whole(self):
        for model in ("tiny-v41", "tiny-v4"):
            status, out, err = quire("verify", "--model", f"{MODELS}/{model}", "--json")
            self.assertEqual((status, err), (0, ""))
            report = json.loads(out)
            self.assertTrue(report["ok"])
            machine = report["machine"]
            self.assertEqual((machine["against"], machine["profile"], machine["faults"]), ("cpu-reference", "reference", []))
            self.assertTrue(all(row["passed"] and row["points"] > 0 for row in machine["operators"]))
            self.assertTrue(any(row["operator"] == "attend" and row["seconds"] > 0 and row["bytes"] > 0 for row in machine["operators"]))
            self.assertEqual(machine["tokens"]["count"], 64)
            self.assertTrue(all(layer["passed"] for layer in machine["tokens"]["layers"]))
        status, out, err = quire("verify", "--model", f"{MODELS}/tiny-v4")
        self.assertEqual((status, err), (0, ""))
        for word in ("the files are sound", "index_select", "tokens/s"):
            self.assertIn(word, out)

    def test_a_device_that_is_not_there_fails(self):
        status, _, err = quire("verify", "--model", f"{MODELS}/tiny-v4", "--device", "nothing")
        self.assertEqual((status, err.count("\n")), (2, 2)) # a wrong line, and where its help is
        self.assertIn("--device is \"nothing\"", err)

    def test_nothing_is_run_on_broken_files(self):
        copy = Copy(self, "tiny-v41")
        copy.poke(SCALE, 5, b"\xff")
        status, out, err = quire("verify", "--model", copy.dir, "--json")
        self.assertEqual(status, 1)
        self.assertNotIn("machine", json.loads(out))
        self.assertIn("nothing was run", err)

    def test_wrong_lines_exit_with_two(self):
        self.assertEqual(quire("verify")[0], 2)
        self.assertEqual(quire("verify", "--model", f"{MODELS}/tiny-v4", "--checksum", "x")[0], 2)
        status, out, err = quire("verify", "--model", "/nowhere")
        self.assertEqual((status, err.count("\n")), (1, 1))


if __name__ == "__main__":
    sys.exit(0 if unittest.main(exit=False).result.wasSuccessful() else 1)
