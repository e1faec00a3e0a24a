# label: release
"""quire bench prints figures that fit together, and refuses what it cannot measure."""
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

QUIRE = os.environ["QUIRE_PROGRAM"]
MODELS = os.path.join(os.environ["QUIRE_SOURCE"], "models")
NARROW = os.path.join(os.environ["QUIRE_SOURCE"], "tests", "data", "config", "narrow-v41.json")
OPERATOR = os.path.join(os.environ["QUIRE_SOURCE"], "tests", "golden", "ops4", "02-rmsnorm-both-a.safetensors")


def bench(*arguments):
    done = subprocess.run([QUIRE, "bench", *arguments], capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr


class Bench(unittest.TestCase):
    def test_parts_sum_to_the_whole(self):
        for model, more in (("tiny-v41", []), ("tiny-v4", ["--rows", "2"])):
            status, out, err = bench("decode", "--model", f"{MODELS}/{model}", "--batch", "2", "--steps", "2", "--json", *more)
            self.assertEqual(status, 0, err)
            figures = json.loads(out)
            self.assertAlmostEqual(sum(p["bytes"] for p in figures["parts"]), figures["bytes_per_step"], delta=1)
            self.assertLessEqual(sum(p["seconds"] for p in figures["parts"]), figures["seconds_per_step"] * 1.01)
            self.assertGreater(figures["read_bytes_per_second"], 0)

    def test_decoding_counts_what_it_reads_of_the_cache(self):
        line = ["decode", "--model", f"{MODELS}/tiny-v4", "--steps", "2", "--json"]
        status, out, err = bench(*line, "--context", "1000", "--also", "3x1000", "--also", "1x0", "--also", "1x2000x2")
        self.assertEqual(status, 0, err)
        cells = json.loads(out)["cells"]
        self.assertEqual([(c["batch"], c["context"], c["rows"]) for c in cells], [(1, 1000, 1), (3, 1000, 1), (1, 0, 1), (1, 2000, 2)])
        cached = [c["cache_bytes_per_step"] for c in cells]
        self.assertEqual(cached[1], 3 * cached[0])
        self.assertTrue(0 < cached[2] < cached[0] < cached[3])
        for c in cells:
            self.assertAlmostEqual(sum(p["bytes"] for p in c["parts"]), c["bytes_per_step"], delta=1)
        status, alone, err = bench(*line, "--context", "1000", "--max-model-len", "4096")
        self.assertEqual(status, 0, err)
        self.assertEqual(json.loads(alone)["cache_bytes_per_step"], cached[0])
        for wrong in ("4", "4xx", "0x1", "1x2x0", "1x2x3x4", "1x-2"):
            self.assertIn("BATCHxCONTEXT", bench(*line, "--also", wrong)[2])

    def test_more_rows_read_no_more_than_every_expert(self):
        sizes = []
        for rows in ("1", "64"):
            status, out, err = bench("prefill", "--model", f"{MODELS}/tiny-v41", "--tokens", rows, "--json")
            self.assertEqual(status, 0, err)
            sizes.append(json.loads(out)["bytes_per_step"])
        self.assertLess(sizes[0], sizes[1])
        self.assertLess(sizes[1], 17732968)

    def test_the_mtp_layer_is_a_part_of_its_own(self):
        for profile in ("reference", "w8a8"):
            status, out, err = bench("decode", "--model", f"{MODELS}/tiny-v4", "--batch", "2", "--steps", "2", "--mtp",
                                     "--profile", profile, "--json")
            self.assertEqual((status, err), (0, ""))
            parts = {p["part"]: p for p in json.loads(out)["parts"]}
            self.assertGreater(parts["MTP layer and its head"]["bytes"], 0)
        status, out, err = bench("decode", "--model", f"{MODELS}/tiny-v41", "--mtp")
        self.assertEqual(status, 1)
        self.assertIn("MTP", err)

    def test_an_int8_folder_weighs_what_an_official_one_does_in_w8a8(self):
        with tempfile.TemporaryDirectory() as scratch:
            stored = os.path.join(scratch, "stored")
            subprocess.run([QUIRE, "quantize", "--w8a8", "--model", f"{MODELS}/tiny-v4", "--out", stored], check=True, capture_output=True)
            figures = []
            for more in (["--model", f"{MODELS}/tiny-v4", "--profile", "w8a8"], ["--model", stored]):
                status, out, err = bench("decode", "--batch", "2", "--steps", "2", "--mtp", "--json", *more)
                self.assertEqual((status, err), (0, ""))
                figures.append({p["part"]: p["bytes"] for p in json.loads(out)["parts"]})
            self.assertEqual(figures[0].keys(), figures[1].keys())
            for part, bytes_ in figures[0].items():
                self.assertAlmostEqual(bytes_, figures[1][part], delta=bytes_ // 100, msg=part)

    def test_json_is_one_object(self):
        model = ["--model", f"{MODELS}/tiny-v41", "--json"]
        small = ["--kv-ram-bytes", "50000000"]
        for line in (["memory", "--json"], ["load", *model, *small], ["rows", *model], ["rows", *model, "--tokens", "5"],
                     ["serve", *model, *small, "--tokens", "64", "--batch", "2"], ["prefill", *model, "--tokens", "9"],
                     ["prefill", *model, "--replay", "--tokens", "70", "--chunk", "300"], ["op", "--in", OPERATOR, "--json"]):
            status, out, err = bench(*line)
            self.assertEqual(status, 0, err)
            self.assertIsInstance(json.loads(out), dict, line)

    def test_prompts_of_rows_end_with_the_longest(self):
        for longest, lengths in (("512", [512]), ("1024", [1024]), ("3000", [1024, 2048, 3000]), ("4096", [1024, 2048, 4096])):
            status, out, err = bench("rows", "--model", f"{MODELS}/tiny-v41", "--tokens", longest, "--json")
            self.assertEqual(status, 0, err)
            self.assertEqual([p["tokens"] for p in json.loads(out)["prompts"]], lengths)
        self.assertIn("32768 tokens:", bench("rows", "--model", f"{MODELS}/tiny-v41")[1])

    def test_a_long_prompt_runs_half_of_its_rows(self):
        # 40 layers and a window of 128, as released; of the width one in 40
        with tempfile.TemporaryDirectory() as folder:
            shutil.copy(NARROW, os.path.join(folder, "config.json"))
            status, out, err = bench("rows", "--model", folder, "--json")
            self.assertEqual(status, 0, err)
            prompts = json.loads(out)["prompts"]
            self.assertEqual([p["tokens"] for p in prompts], [1024 << i for i in range(6)])
            longest = prompts[-1]
            self.assertEqual(longest["off"]["rows"], 40 * 32768)
            self.assertEqual(longest["exact"]["rows"], 20 * 32768 + 24150)
            self.assertEqual(longest["bounded"]["rows"], 20 * 32768 + 19 * 128 + 1)
            self.assertLessEqual(longest["exact"]["rows_part"], 0.53)
            self.assertLessEqual(longest["exact"]["flops_part"], 0.53)
            for mode in ("off", "exact", "bounded"):
                self.assertEqual(sum(longest[mode]["by_kind"].values()), longest[mode]["rows"])

    def test_a_prompt_is_timed_in_each_mode_that_the_model_has(self):
        for model, modes in (("tiny-v41", {"off", "exact", "bounded"}), ("tiny-v4", {"off", "exact"})):
            status, out, err = bench("prefill", "--replay", "--model", f"{MODELS}/{model}", "--tokens", "200", "--chunk", "300",
                                     "--json")
            self.assertEqual((status, err), (0, ""))
            prompt, = json.loads(out)["prompts"]
            self.assertEqual(set(prompt) - {"tokens"}, modes)
            for mode in modes:
                self.assertGreater(prompt[mode]["seconds"], 0)
                self.assertNotIn("rows_audited", prompt[mode])

    # A10: what is counted in the kernels' buffers, layer by layer, is what the row plan says
    def test_kernels_run_the_rows_that_are_printed(self):
        for model, tokens, chunk, modes in (("tiny-v41", "270", "260", ("off", "exact", "bounded")), ("tiny-v4", "140", "100", ("off", "exact"))):
            question = ["prefill", "--replay", "--audit", "--model", f"{MODELS}/{model}", "--tokens", tokens, "--chunk", chunk]
            status, out, err = bench(*question, "--json")
            self.assertEqual((status, err), (0, ""))
            prompt, = json.loads(out)["prompts"]
            for mode in modes:
                self.assertEqual(prompt[mode]["rows_audited"], prompt[mode]["rows"], (model, mode))
        status, out, err = bench(*question)
        self.assertEqual((status, err), (0, ""))
        self.assertIn("kernels ran", out)

    def test_bounded_replay_runs_in_steps_of_more_than_two_blocks(self):
        # chunks of bounded replay go back a block, which a smaller step could not
        status, out, err = bench("prefill", "--replay", "--model", f"{MODELS}/tiny-v41", "--tokens", "300", "--chunk", "257")
        self.assertEqual((status, err), (0, ""))
        self.assertIn("bounded", out)

    def test_drafts_are_measured_kind_by_kind_and_on_random_tokens(self):
        question = {"messages": [{"role": "user", "content": "Add 11 and 12."}], "max_tokens": 24, "temperature": 0}
        with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as requests:
            requests.write(json.dumps({"kind": "add", "request": question}) + "\n" + json.dumps(question) + "\n")
            requests.flush()
            status, out, err = bench("drafts", "--model", f"{MODELS}/tiny-v4", "--requests", requests.name, "--batch", "2",
                                     "--tokens", "8", "--json")
            self.assertEqual(status, 0, err)
            found = json.loads(out)
            self.assertEqual([kind["kind"] for kind in found["kinds"]], ["add", "requests", "random tokens"])
            for kind in found["kinds"] + [found["file"]]:
                self.assertTrue(1 <= kind["tokens_a_step"] <= 2 and 0 <= kind["acceptance_rate"] <= 1)
                self.assertTrue(kind["seconds_without"] > 0 and kind["seconds_always"] > 0 and kind["seconds_auto"] > 0)
            mean = sum(kind["tokens_a_step"] for kind in found["kinds"][:2]) / 2
            self.assertAlmostEqual(found["mean_tokens_a_step"], mean)
            requests.write('{"messages": 3}\n')
            requests.flush()
            status, out, err = bench("drafts", "--model", f"{MODELS}/tiny-v4", "--requests", requests.name)
            self.assertEqual((status, out), (1, ""))
            self.assertIn("messages", err)

    def test_pairs_of_runs_are_told_with_their_spread(self):
        status, out, err = bench("drafts", "--model", f"{MODELS}/tiny-v4", "--pairs", "2", "--tokens", "3", "--batch", "8", "--json")
        self.assertEqual(status, 0, err)
        found = json.loads(out)
        self.assertEqual([found["batch"], found["tokens"], found["pairs"]], [8, 3, 2])
        self.assertEqual([text["text"] for text in found["texts"]], ["random tokens", "random drafts"])
        for text in found["texts"]:
            spread = text["cpu_ratio"]
            ordered = [spread[name] for name in ("least", "lower_quartile", "median", "upper_quartile", "most")]
            self.assertEqual(ordered, sorted(ordered))
            self.assertGreater(ordered[0], 0)

    def test_one_stream_is_one(self):
        status, out, err = bench("serve", "--model", f"{MODELS}/tiny-v41", "--kv-ram-bytes", "50000000", "--tokens", "64",
                                 "--batch", "1", "--json")
        self.assertEqual((status, json.loads(out)["streams"]), (0, 1), err)

    def test_an_operator_stands_beside_the_memory(self):
        status, out, err = bench("op", "--in", OPERATOR, "--steps", "3", "--json")
        time = json.loads(out)["time"]
        self.assertEqual((status, time["calls"]), (0, 3), err)
        self.assertGreater(time["bandwidth"], 0)

    def test_a_wrong_line_is_one_sentence(self):
        model = ["--model", f"{MODELS}/tiny-v41"]
        for line, said in ((["decod", *model], 'unknown figures "decod", wanted memory, op, text, load, decode, prefill, serve, '
                                               "drafts or rows; the nearest is decode"),
                           (["opp"], "the nearest is op"),
                           (["op"], "--in FILE is missing"),
                           (["memory", "--chunk", "5"], "--chunk says nothing to memory"),
                           (["rows", *model, "--replay"], "--replay says nothing to rows"),
                           (["prefill", *model, "--replay", "--context", "5"], "--context says nothing to prefill --replay"),
                           (["prefill", *model, "--audit"], "--audit says nothing to prefill without --replay"),
                           (["rows", *model, "--audit"], "--audit says nothing to rows"),
                           (["drafts", *model, "--pairs", "1", "--steps", "2"], "--steps says nothing to drafts --pairs"),
                           (["drafts", *model, "--pairs", "1", "--requests", "x"], "--requests says nothing to drafts --pairs"),
                           (["rows", *model, "--in", "x"], "--in says nothing to rows"),
                           (["decode", *model, "--mtp", "--rows", "4"], "--rows is 4, wanted 2 with --mtp"),
                           (["op", "--in", "x", *model], "--model says nothing to op"),
                           (["memory", "--device", "cpu"], "--device says nothing to memory"),
                           (["text", *model, "--threads", "1"], "--threads says nothing to text"),
                           (["rows", *model, "--tp", "2"], "--tp says nothing to rows"),
                           (["decode", *model, "--max-num-seqs", "4"], "--max-num-seqs says nothing to decode"),
                           (["prefill", *model, "--decoder-replay", "exact"], "--decoder-replay says nothing to prefill"),
                           (["prefill", *model, "--method", "none"], "--method says nothing to prefill"),
                           (["serve", *model, "--no-prefix-caching"], "--no-prefix-caching says nothing to serve"),
                           (["op", "--in", "x", "--profile", "w8a8"], "--profile says nothing to op"),
                           (["load", "rotate", *model], 'argument "rotate" is one too many'),
                           (["load"], "--model DIR is missing")):
            status, out, err = bench(*line)
            self.assertEqual((status, out, err), (2, "", f"quire bench: {err.split(': ', 1)[1].splitlines()[0]}\n"
                                                         "Try 'quire bench --help'.\n"))
            self.assertIn(said, err)

    def test_what_cannot_be_measured_is_refused(self):
        self.assertEqual(bench("decode")[0], 2)
        self.assertEqual(bench("nothing", "--model", f"{MODELS}/tiny-v41")[0], 2)
        status, out, err = bench("decode", "--model", f"{MODELS}/tiny-v41", "--rows", "9")
        self.assertEqual((status, out), (2, ""))
        self.assertIn("--rows 9", err)

    def test_values_out_of_range_are_refused_with_the_range(self):
        for status, says, *arguments in (
                (1, "a request of 65546 tokens, wanted at most max_position_embeddings 65536", "prefill", "--context", "65536",
                 "--tokens", "10"),
                (1, "wanted at most --max-model-len 100", "prefill", "--context", "91", "--tokens", "10", "--max-model-len", "100"),
                (1, "wanted at most --max-model-len 20", "decode", "--max-model-len", "20"),
                (3, "wanted at most max_position_embeddings 65536", "decode", "--max-model-len", "65537")):
            done, out, err = bench(*arguments, "--model", f"{MODELS}/tiny-v41")
            self.assertEqual((done, out), (status, ""), arguments)
            self.assertIn(says, err)

    def test_what_does_not_fit_is_refused_before_a_shard_is_opened(self):
        with tempfile.TemporaryDirectory() as folder:
            shutil.copy(f"{MODELS}/tiny-v41/config.json", folder)
            for what in ("decode", "prefill"):
                status, out, err = bench(what, "--model", folder, "--kv-ram-bytes", "1000")
                self.assertEqual((status, out), (3, ""), err)
                fits = re.search("E31 .*--kv-ram-bytes ([0-9]+) would do", err)
                self.assertTrue(fits, err)
                status, out, err = bench(what, "--model", f"{MODELS}/tiny-v41", "--kv-ram-bytes", fits[1], "--log-level", "info")
                self.assertEqual(status, 0, err)
                self.assertIn("plan: PAGE pool", err)


if __name__ == "__main__":
    sys.exit(0 if unittest.main(exit=False).result.wasSuccessful() else 1)
