"""Files for quire op made from a checkpoint: the arrays of a layer or a forward, with empty or given paged caches."""
import json
import os
import struct
import subprocess

QUIRE = os.environ.get("QUIRE_PROGRAM", "quire")
SIZES = {"BF16": 2, "F32": 4, "I8": 1, "I32": 4, "I64": 8, "F8_E4M3": 1, "F8_E8M0": 1, "U8": 1}
LOWEST = struct.pack("<f", -3.4028234663852886e38)


class Array:
    def __init__(self, dtype, shape, data):
        self.dtype, self.shape, self.data = dtype, list(shape), bytes(data)
        count = SIZES[dtype]
        for n in shape:
            count *= n
        assert count == len(self.data), (dtype, shape, len(self.data))

    def rows(self, first, count):
        """Elements [first, first + count) of the first axis."""
        row = len(self.data) // self.shape[0]
        return Array(self.dtype, [count] + self.shape[1:], self.data[first * row:(first + count) * row])

    def values(self):
        kind = {"F32": "f", "I32": "i", "I64": "q", "I8": "b", "U8": "B"}
        if self.dtype == "BF16":
            halves = struct.unpack(f"<{len(self.data) // 2}H", self.data)
            return struct.unpack(f"<{len(halves)}f", struct.pack(f"<{len(halves)}I", *[h << 16 for h in halves]))
        return struct.unpack(f"<{len(self.data) // SIZES[self.dtype]}{kind[self.dtype]}", self.data)

    def reshaped(self, *shape):
        return Array(self.dtype, shape, self.data)


def ints(values, *shape):
    return Array("I32", shape or [len(values)], struct.pack(f"<{len(values)}i", *values))


def zeros(dtype, *shape):
    count = SIZES[dtype]
    for n in shape:
        count *= n
    return Array(dtype, shape, bytes(count))


def joined(arrays, *shape):
    return Array(arrays[0].dtype, shape, b"".join(a.data for a in arrays))


def read(path):
    with open(path, "rb") as f:
        data = f.read()
    n = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:8 + n])
    metadata = header.pop("__metadata__", {})
    return {k: Array(v["dtype"], v["shape"], data[8 + n + v["data_offsets"][0]:8 + n + v["data_offsets"][1]])
            for k, v in header.items()}, metadata


def write(path, arrays, metadata):
    header, at = {"__metadata__": metadata}, 0
    for name, a in arrays.items():
        header[name] = {"dtype": a.dtype, "shape": a.shape, "data_offsets": [at, at + len(a.data)]}
        at += len(a.data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + b"".join(a.data for a in arrays.values()))


def read_folder(folder):
    arrays = {}
    for name in sorted(os.listdir(folder)):
        if name.endswith(".safetensors"):
            arrays.update(read(os.path.join(folder, name))[0])
    return arrays


def run(scratch, op, profile, params, inputs, outputs=None, *options):
    """Runs quire op: its arrays without "out.", or the message of a refusal as a str."""
    path, out = os.path.join(scratch, "in.safetensors"), os.path.join(scratch, "out.safetensors")
    arrays = {"in." + k: v for k, v in inputs.items()}
    arrays.update({"out." + k: v for k, v in (outputs or {}).items()})
    write(path, arrays, {"op": op, "profile": profile, "params": json.dumps(params)})
    done = subprocess.run([QUIRE, "op", "--in", path, "--out", out, *options], capture_output=True, text=True)
    if done.returncode:
        return done.stdout + done.stderr
    return {k[4:]: v for k, v in read(out)[0].items()}


def timed(scratch, op, profile, params, inputs):
    """What quire op says of the time and the bytes of one call."""
    path = os.path.join(scratch, "in.safetensors")
    write(path, {"in." + k: v for k, v in inputs.items()}, {"op": op, "profile": profile, "params": json.dumps(params)})
    done = subprocess.run([QUIRE, "op", "--in", path, "--time", "1", "--json"], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def permuted(i, n):
    """The page that stands in the place of page i (v4-model.md section 10)."""
    return (7 * i + 3) % n


def pool_of(pages):
    """A few more pages than are used, so many that `permuted` names each once."""
    return pages + 1 + ((pages + 1) % 7 == 0)


class Model:
    """An official folder and its INT8 form, as arrays for single layers."""

    def __init__(self, folder, scratch):
        with open(os.path.join(folder, "config.json")) as text:
            self.config = json.load(text)
        self.official = read_folder(folder)
        stored = os.path.join(scratch, "w8a8")
        subprocess.run([QUIRE, "quantize", "--w8a8", "--model", folder, "--out", stored], check=True, capture_output=True)
        self.stored = read_folder(stored)
        self.ratios = self.config["compress_ratios"]
        self.layers = self.config["num_hidden_layers"]

    def _place(self, name, layer):
        """Where a layer stands in the stack of a tensor of 7.1; None: it has none."""
        same = [i for i in range(self.layers) if self.ratios[i] == self.ratios[layer]]
        if name.startswith(("csa_", "hca_")):
            return same.index(layer) if (self.ratios[layer] == 4) == name.startswith("csa_") and self.ratios[layer] else None
        return layer

    def layer(self, profile, layer, mtp=False):
        """The weights of a layer under their names in a harness; of the MTP layer with all it has beside."""
        out = {}
        if profile == "ref":
            stem = "mtp.0." if mtp else f"layers.{layer}."
            return {k[len(stem):]: v for k, v in self.official.items() if k.startswith(stem)}
        for name, a in self.stored.items():
            if name.startswith("mtp_") != mtp or name in ("freqs_cos", "freqs_sin"):
                continue
            if mtp:
                out[name] = a
            elif name not in ("embed_weight", "lm_head_weight", "final_norm_w", "hc_head_fn", "hc_head_scale", "hc_head_base"):
                place = self._place(name, layer)
                if place is not None:
                    out[name] = a.rows(place, 1).reshaped(*a.shape[1:])
        return out

    def embedded(self, ids, profile):
        """Streams of tokens before layer 0."""
        embed, streams = self.official["embed.weight"], self.config["hc_mult"]
        row = len(embed.data) // embed.shape[0]
        data = b"".join(embed.data[i * row:(i + 1) * row] * streams for i in ids)
        shape = [len(ids), streams, embed.shape[1]]
        if profile == "ref":
            return Array("BF16", shape, data)
        return Array("F32", shape, struct.pack(f"<{len(data) // 2}I", *[h << 16 for h in struct.unpack(f"<{len(data) // 2}H", data)]))


class Caches:
    """Empty pools and tables of one layer of one rank, for `requests` of up to `pages` pages, pages permuted."""

    def __init__(self, model, ratio, profile, requests, pages):
        c = model.config
        d, di = c["head_dim"], c["index_head_dim"]
        n = pool_of(requests * pages + 1)
        self.ratio, self.requests, self.pages, self.n = ratio, requests, pages, n
        table = [[permuted(b * pages + i, n) for i in range(pages)] for b in range(requests)]
        self.arrays = {"kv_cache": zeros("BF16", n, 128, 1, d), "block_table": self._table(table)}
        if ratio:
            wide = 4 * d if ratio == 4 else 2 * d
            self._state("state", table, 4 if ratio == 4 else 8, wide, 6 if ratio == 4 else 20)
            self.arrays["cmp_kv"] = zeros("BF16", n, 128 // ratio, 1, d)
            self.arrays["cmp_table"] = self._table(table)
        if ratio == 4:
            self._state("inner_state", table, 4, 4 * di, 5)
            self.arrays["idx_kv_cache"] = zeros("I8" if profile == "w8a8" else "BF16", n, 32, 1, di)
            if profile == "w8a8":
                self.arrays["idx_kv_scale"] = zeros("F32", n, 32, 1, 1)
            self.arrays["idx_table"] = self._table(table)

    def _table(self, table):
        return ints([p for row in table for p in row], len(table), len(table[0]))

    def _state(self, name, table, rows, width, pages):
        n = pool_of(self.requests * pages)
        half = b"\0" * (2 * width) + LOWEST * (width // 2)
        self.arrays[name] = Array("F32", [n, rows, width], half * (n * rows))
        self.arrays[name + "_table"] = self._table([[permuted(b * pages + i, n) for i in range(pages)] for b in range(self.requests)])

    def inputs(self, prefill):
        """As a harness takes them: prefill tables have no axis of requests."""
        return {k: (v.reshaped(v.shape[1]) if prefill and k.endswith("table") else v) for k, v in self.arrays.items()}

    def take(self, outputs):
        for name in self.arrays:
            if name in outputs:
                self.arrays[name] = outputs[name].reshaped(*self.arrays[name].shape)
