"""A direct computation of speculation.md section 2 for the V4 releases: keys from taps, drafts behind them, from the tensors
of a folder alone. Sums are made in double precision and rounded where v4-model.md appendix A.1 and A.2 write a rounding
(Drafter), or 7.4 and appendix D (Deployed, profile w8a8)."""
import math
import operator
import struct

import op_files as f


def singles(values):
    return list(struct.unpack(f"<{len(values)}f", struct.pack(f"<{len(values)}f", *values)))


def single(x):
    return struct.unpack("<f", struct.pack("<f", x))[0]


def halves(values):
    """Rounded to bf16, ties to even."""
    n = len(values)
    bits = struct.unpack(f"<{n}I", struct.pack(f"<{n}f", *values))
    return list(struct.unpack(f"<{n}f", struct.pack(f"<{n}I", *[(b + 0x7FFF + (b >> 16 & 1)) & 0xFFFF0000 for b in bits])))


def half(x):
    return halves([x])[0]


def dot(a, b):
    return sum(map(operator.mul, a, b))


def e4m3(x):
    if x == 0:
        return 0.0
    step = 2.0 ** (max(math.frexp(x)[1] - 1, -6) - 3)
    return max(-448.0, min(448.0, round(x / step) * step))


def e4m3_value(code):
    exponent, mantissa = code >> 3 & 15, code & 7
    size = mantissa * 2.0 ** -9 if exponent == 0 else (8 + mantissa) * 2.0 ** (exponent - 10)
    return -size if code & 128 else size


def scale_of(block):
    """4.1: the least power of two that brings the block into 448."""
    return 2.0 ** math.ceil(math.log2(max(1e-4, max(map(abs, block))) / 448))


def quantized(row, size):
    """Codes of the row, as numbers, and the scale of each `size` columns."""
    codes, scales = [], []
    for at in range(0, len(row), size):
        scale = scale_of(row[at:at + size])
        codes += [e4m3(v / scale) for v in row[at:at + size]]
        scales.append(scale)
    return codes, scales


FP8 = [e4m3_value(code) for code in range(256)]
FP4 = [s * v for s in (1, -1) for v in (0, 0.5, 1, 1.5, 2, 3, 4, 6)]


def sigmoid(x):
    return 1 / (1 + math.exp(-x)) if x > -700 else 0.0


class Blocks:
    """A quantized matrix: FP8 with a scale for 128 x 128 tiles, or FP4 with one for 32 columns."""

    def __init__(self, weight, scale):
        n, k = weight.shape
        if weight.dtype == "F8_E4M3":
            self.size, self.tile = 128, 128
            rows = [[FP8[c] for c in weight.data[i * k:(i + 1) * k]] for i in range(n)]
        else:
            self.size, self.tile, k = 32, 1, 2 * k
            rows = [[FP4[c >> s & 15] for c in weight.data[i * k // 2:(i + 1) * k // 2] for s in (0, 4)] for i in range(n)]
        self.rows = rows
        width = scale.shape[1]
        self.scales = [[2.0 ** (b - 127) for b in scale.data[i * width:(i + 1) * width]] for i in range(scale.shape[0])]

    def times(self, row):
        codes, scales = quantized(row, 128)
        parts = [(at, codes[at:at + self.size], scales[at // 128]) for at in range(0, len(codes), self.size)]
        out = []
        for j, weights in enumerate(self.rows):
            total, own = 0.0, self.scales[j // self.tile]
            for b, (at, part, scale) in enumerate(parts):
                total = single(total + single(dot(part, weights[at:at + self.size])) * scale * own[b])
            out.append(total)
        return halves(out)


def matrix(a):
    values, k = a.values(), a.shape[-1]
    return [values[i:i + k] for i in range(0, len(values), k)]


class Drafter:
    def __init__(self, folder, config):
        self.tensors, self.c = f.read_folder(folder), config
        self.stages = sum(1 for name in self.tensors if name.startswith("mtp.") and name.endswith(".attn_norm.weight"))
        self.cache = {}
        self.eps = config["rms_norm_eps"]
        dim = config["qk_rope_head_dim"]
        self.rates = [single(1 / single(config["rope_theta"] ** (2 * i / dim))) for i in range(dim // 2)]

    def get(self, name, make):
        if name not in self.cache:
            self.cache[name] = make(self.tensors[name])
        return self.cache[name]

    def vector(self, name):
        return self.get(name, lambda a: a.values())

    def plain(self, name):
        return self.get(name, matrix)

    def times(self, name, row):
        return self.get(name + ".weight", lambda a: Blocks(a, self.tensors[name + ".scale"])).times(row)

    # ---- pieces ----

    def norm(self, row, weight):
        factor = single(1 / math.sqrt(single(dot(row, row) / len(row)) + self.eps))
        return halves([single(x * factor) * w for x, w in zip(row, weight)])

    def turned(self, row, position, sign=1):
        """The last lanes turned as pairs."""
        first, out = len(row) - 2 * len(self.rates), list(row)
        for i, rate in enumerate(self.rates):
            angle = single(position * rate)
            cos, sin = single(math.cos(angle)), sign * single(math.sin(angle))
            x, y = row[first + 2 * i], row[first + 2 * i + 1]
            out[first + 2 * i:first + 2 * i + 2] = [x * cos - y * sin, x * sin + y * cos]
        return halves(out)

    def key(self, stage, row, position):
        """2.3: on the grid but for the lanes that turn."""
        k = self.norm(self.times(stage + "attn.wkv", row), self.vector(stage + "attn.kv_norm.weight"))
        k = self.turned(k, position)
        fixed = len(k) - 2 * len(self.rates)
        codes, scales = quantized(k[:fixed], 64)
        return [c * scales[i // 64] for i, c in enumerate(codes)] + k[fixed:]

    def mixes(self, streams, fn, base, scale, head=False):
        m, hc = len(streams), self.c["hc_eps"]
        flat = [x for s in streams for x in s]
        factor = single(1 / math.sqrt(single(dot(flat, flat) / len(flat)) + self.eps))
        z = [single(single(dot(w, flat)) * factor) for w in self.plain(fn)]
        base, scale = self.vector(base), self.vector(scale)
        pre = singles([sigmoid(z[j] * scale[0] + base[j]) + hc for j in range(m)])
        if head:
            return pre
        post = singles([2 * sigmoid(z[m + j] * scale[1] + base[m + j]) for j in range(m)])
        comb = []
        for j in range(m):
            row = [z[2 * m + m * j + k] * scale[2] + base[2 * m + m * j + k] for k in range(m)]
            powers = [math.exp(v - max(row)) for v in row]
            comb.append([p / sum(powers) + hc for p in powers])
        for step in range(self.c["hc_sinkhorn_iters"]):
            if step:
                comb = [[v / (sum(row) + hc) for v in row] for row in comb]
            totals = [sum(row[k] for row in comb) + hc for k in range(m)]
            comb = [[v / t for v, t in zip(row, totals)] for row in comb]
        return pre, post, [singles(row) for row in comb]

    def collapsed(self, streams, pre):
        return halves([dot(pre, column) for column in zip(*streams)])

    def expanded(self, streams, out, post, comb):
        return [halves([post[k] * y + dot([row[k] for row in comb], column) for y, column in zip(out, zip(*streams))])
                for k in range(len(streams))]

    # ---- attention and experts ----

    def heads(self, stage, row, position):
        low = self.norm(self.times(stage + "attn.wq_a", row), self.vector(stage + "attn.q_norm.weight"))
        q, d, out = self.times(stage + "attn.wq_b", low), self.c["head_dim"], []
        for at in range(0, len(q), d):
            head = q[at:at + d]
            mean = half(single(sum(halves([x * x for x in head])) / d))
            factor = half(1 / math.sqrt(half(mean + self.eps)))
            out.append(self.turned(halves([x * factor for x in head]), position))
        return out

    def attended(self, q, slots, sink):
        """5.4: in blocks of 64 slots; a slot without a key is None."""
        high, total, out = -math.inf, 0.0, [0.0] * len(q)
        factor = single(len(q) ** -0.5)
        for at in range(0, len(slots), 64):
            keys = [k for k in slots[at:at + 64] if k is not None]
            if not keys:
                continue
            scores = singles([single(dot(q, k)) * factor for k in keys])
            largest = max(high, max(scores))
            old = single(math.exp(high - largest)) if high > -math.inf else 0.0
            powers = singles([math.exp(s - largest) for s in scores])
            total = single(total * old + sum(powers))
            weights = halves(powers)
            out = singles([o * old + dot(weights, column) for o, column in zip(out, zip(*keys))])
            high = largest
        total += math.exp(sink - high)
        return halves([o / total for o in out])

    def attention(self, stage, rows, ring, first):
        """Every row of a block sees the ring and the whole block; 2.6."""
        fresh = [self.key(stage, x, first + j) for j, x in enumerate(rows)]
        window = self.c["sliding_window"]
        slots = ring + [None] * (window - len(ring)) + fresh
        sinks, groups, out = self.vector(stage + "attn.attn_sink"), self.c["o_groups"], []
        low = self.get(stage + "attn.wo_a.weight", lambda a: Dense(a, self.tensors.get(stage + "attn.wo_a.scale")))
        for j, x in enumerate(rows):
            o = []
            for q, sink in zip(self.heads(stage, x, first + j), sinks):
                o += self.turned(self.attended(q, slots, sink), first + j, -1)
            width = len(o) // groups
            u = [single(dot(w, o[n * groups // len(low.rows) * width:][:width])) for n, w in enumerate(low.rows)]
            out.append(self.times(stage + "attn.wo_b", halves(u)))
        return out

    def expert(self, name, row, factor):
        limit = self.c["swiglu_limit"]
        gate, up = self.times(name + "w1", row), self.times(name + "w3", row)
        inner = []
        for g, u in zip(gate, up):
            g, u = min(g, limit), max(-limit, min(limit, u))
            inner.append(single(g * sigmoid(g) * u) * factor)
        return self.times(name + "w2", halves(inner))

    def moe(self, stage, row):
        row, scores = self.norm(row, self.vector(stage + "ffn_norm.weight")), []
        for w in self.plain(stage + "ffn.gate.weight"):
            z = single(dot(w, row))
            scores.append(single(math.sqrt(max(z, 0) + math.log1p(math.exp(-abs(z))))))
        bias = self.vector(stage + "ffn.gate.bias")
        order = sorted(range(len(scores)), key=lambda e: (-single(scores[e] + bias[e]), e))[:self.c["num_experts_per_tok"]]
        total, out = sum(scores[e] for e in order), [0.0] * len(row)
        for e in sorted(order):
            y = self.expert(f"{stage}ffn.experts.{e}.", row, single(scores[e] / total * self.c["routed_scaling_factor"]))
            out = singles([a + b for a, b in zip(out, y)])
        return halves([a + b for a, b in zip(out, self.expert(stage + "ffn.shared_experts.", row, 1.0))])

    def block(self, stage, streams, ring, first):
        streams = self.attention_half(stage, streams, ring, first)
        return self.half(stage, "ffn", streams, lambda rows: [self.moe(stage, x) for x in rows])

    def half(self, stage, part, streams, run):
        mixed = [self.mixes(s, *[f"{stage}hc_{part}_{kind}" for kind in ("fn", "base", "scale")]) for s in streams]
        rows = [self.collapsed(s, m[0]) for s, m in zip(streams, mixed)]
        return [self.expanded(s, y, m[1], m[2]) for s, y, m in zip(streams, run(rows), mixed)]

    def attention_half(self, stage, streams, ring, first):
        norm = self.vector(stage + "attn_norm.weight")
        return self.half(stage, "attn", streams, lambda rows: self.attention(stage, [self.norm(x, norm) for x in rows], ring, first))

    # ---- the whole ----

    def projected(self, u):
        return self.norm(self.times("mtp.0.main_proj", u), self.vector("mtp.0.main_norm.weight"))

    def context(self, taps, first=0):
        """2.3: the keys of every stage, a row for each row of taps, which stand at positions from `first` on."""
        rows = [self.projected(u) for u in taps]
        return [[self.key(f"mtp.{s}.", m, first + i) for i, m in enumerate(rows)] for s in range(self.stages)]

    def hidden(self, keys, anchor, shift=0):
        """2.4 to 2.6 behind len(keys[0]) committed positions: what stands before the last norm, a row for each slot. `shift`
        moves the block's positions, as a mistake would."""
        c, first = self.c, len(keys[0]) + shift
        ids = [anchor] + [c["dspark_noise_token_id"]] * (c["dspark_block_size"] - 1)
        streams = [[list(self.plain("embed.weight")[t])] * c["hc_mult"] for t in ids]
        for s in range(self.stages):
            streams = self.block(f"mtp.{s}.", streams, keys[s][-c["sliding_window"]:], first)
        last = f"mtp.{self.stages - 1}."
        return [self.collapsed(x, self.mixes(x, last + "hc_head_fn", last + "hc_head_base", last + "hc_head_scale", True))
                for x in streams]

    def draft(self, keys, anchor):
        """2.7, greedy: hidden rows, base logits, logits, tokens, confidences before their sigmoid."""
        last = f"mtp.{self.stages - 1}."
        rows, head = self.hidden(keys, anchor), self.plain("head.weight")
        w1, w2 = self.plain(last + "markov_head.markov_w1.weight"), self.plain(last + "markov_head.markov_w2.weight")
        confidence = self.plain(last + "confidence_head.proj.weight")[0]
        base, logits, tokens, confidences, before = [], [], [], [], anchor
        for h in rows:
            z = self.norm(h, self.vector(last + "norm.weight"))
            base.append([single(dot(z, w)) for w in head])
            logits.append([single(u + single(dot(w1[before], w))) for u, w in zip(base[-1], w2)])
            confidences.append(dot(confidence, list(h) + list(w1[before])))
            before = max(range(len(head)), key=lambda v: (logits[-1][v], -v))
            tokens.append(before)
        return rows, base, logits, tokens, confidences


class Dense:
    """wo_a, stored FP8 with scales or as bf16: its values."""

    def __init__(self, weight, scale):
        if weight.dtype == "BF16":
            self.rows = matrix(weight)
            return
        b = Blocks(weight, scale)
        self.rows = [[w * b.scales[j // 128][k // 128] for k, w in enumerate(row)] for j, row in enumerate(b.rows)]


# ---- profile w8a8 ----

def int8(row):
    """7.3: codes and the scale of a row."""
    factor = single(127 / max(1e-4, max(map(abs, row))))
    return [round(v) for v in singles([x * factor for x in row])], single(1 / factor)


class Channels:
    """7.2: a matrix as INT8, a scale for each output channel."""

    def __init__(self, rows):
        self.rows = [int8(row) for row in rows]

    def times(self, codes, scale):
        return [single(single(single(dot(codes, q)) * scale) * s) for q, s in self.rows]


def values_of(weight, scale):
    """A matrix of codes as numbers, exactly."""
    b = Blocks(weight, scale)
    return [[w * b.scales[j // b.tile][k // b.size] for k, w in enumerate(row)] for j, row in enumerate(b.rows)]


class Deployed(Drafter):
    def dense(self, name):
        return self.get(name + ".weight", lambda a: values_of(a, self.tensors[name + ".scale"]) if a.dtype != "BF16" else matrix(a))

    def channels(self, name):
        return self.get(name + ".weight", lambda a: Channels(values_of(a, self.tensors[name + ".scale"])))

    def product(self, name, row):
        return [single(dot(w, row)) for w in self.dense(name)]

    def times(self, name, row):
        return halves(self.product(name, row))

    def wide_norm(self, row, weight):
        factor = single(1 / math.sqrt(single(dot(row, row) / len(row)) + self.eps))
        return singles([single(x * factor) * w for x, w in zip(row, weight)])

    def turned(self, row, position, sign=1):
        """By tables rounded to bf16."""
        first, out = len(row) - 2 * len(self.rates), list(row)
        for i, rate in enumerate(self.rates):
            angle = single(position * rate)
            cos, sin = half(math.cos(angle)), sign * half(math.sin(angle))
            x, y = row[first + 2 * i], row[first + 2 * i + 1]
            out[first + 2 * i:first + 2 * i + 2] = [x * cos - y * sin, x * sin + y * cos]
        return halves(out)

    def key(self, stage, row, position):
        k = self.wide_norm(self.product(stage + "attn.wkv", row), self.vector(stage + "attn.kv_norm.weight"))
        return self.turned(k, position)

    def collapsed(self, streams, pre):
        a, b, c, d = ([p * x for x in s] for p, s in zip(pre, streams))
        return halves([(p + q) + (r + t) for p, q, r, t in zip(a, b, c, d)])

    def expanded(self, streams, out, post, comb):
        return [singles([post[k] * y + dot([row[k] for row in comb], column) for y, column in zip(out, zip(*streams))])
                for k in range(len(streams))]

    def heads(self, stage, row, position):
        low = self.wide_norm(self.product(stage + "attn.wq_a", row), self.vector(stage + "attn.q_norm.weight"))
        q, d, out = self.channels(stage + "attn.wq_b").times(*int8(low)), self.c["head_dim"], []
        for at in range(0, len(q), d):
            factor = single(1 / math.sqrt(single(dot(q[at:at + d], q[at:at + d]) / d) + self.eps))
            out.append(self.turned(singles([x * factor for x in q[at:at + d]]), position))
        return out

    def attended(self, q, slots, sink):
        """7.4: tiles of 128 slots, merged from left to right."""
        high, total, out, factor = -math.inf, 0.0, [0.0] * len(q), single(len(q) ** -0.5)
        for at in range(0, len(slots), 128):
            keys = [k for k in slots[at:at + 128] if k is not None]
            if not keys:
                continue
            scores = singles([single(dot(q, k)) * factor for k in keys])
            largest = max(scores)
            powers = singles([math.exp(s - largest) for s in scores])
            part = singles([dot(halves(powers), column) for column in zip(*keys)])
            both = max(high, largest)
            old, new = (single(math.exp(x - both)) if x > -math.inf else 0.0 for x in (high, largest))
            total = single(total * old + single(sum(powers)) * new)
            out, high = singles([a * old + b * new for a, b in zip(out, part)]), both
        total += math.exp(sink - high)
        return singles([o / total for o in out])

    def attention(self, stage, rows, ring, first):
        fresh = [self.key(stage, x, first + j) for j, x in enumerate(rows)]
        slots = ring + [None] * (self.c["sliding_window"] - len(ring)) + fresh
        sinks, groups, out = self.vector(stage + "attn.attn_sink"), self.c["o_groups"], []
        low, high = self.dense(stage + "attn.wo_a"), self.channels(stage + "attn.wo_b")
        for j, x in enumerate(rows):
            o = []
            for q, sink in zip(self.heads(stage, x, first + j), sinks):
                o += self.turned(self.attended(q, slots, sink), first + j, -1)
            width = len(o) // groups
            u = halves([dot(w, o[n * groups // len(low) * width:][:width]) for n, w in enumerate(low)])
            out.append(halves(high.times(*int8(u))))  # appendix D: bf16, whole rows
        return out

    def expert(self, name, x8, scale, factor):
        limit, inner = self.c["swiglu_limit"], []
        for g, u in zip(self.channels(name + "w1").times(x8, scale), self.channels(name + "w3").times(x8, scale)):
            g, u = min(g, limit), max(-limit, min(limit, u))
            inner.append(g * sigmoid(g) * u)
        codes, own = int8(singles(inner))
        return halves(self.channels(name + "w2").times(codes, single(own * factor)))

    def moe(self, stage, row):
        wide = singles([x * w for x, w in zip(row, self.vector(stage + "ffn_norm.weight"))])
        inverse = single(1 / math.sqrt(single(dot(row, row) / len(row)) + self.eps))
        x8, scale = int8(wide)
        scale, scores = single(scale * inverse), []
        for w in self.plain(stage + "ffn.gate.weight"):
            z = single(inverse * single(dot(w, wide)))
            scores.append(single(math.sqrt(max(z, 0) + math.log1p(math.exp(-abs(z))))))
        bias = self.vector(stage + "ffn.gate.bias")
        order = sorted(range(len(scores)), key=lambda e: (-single(scores[e] + bias[e]), e))[:self.c["num_experts_per_tok"]]
        total, out = sum(scores[e] for e in order), self.expert(stage + "ffn.shared_experts.", x8, scale, 1.0)
        for e in order:
            y = self.expert(f"{stage}ffn.experts.{e}.", x8, scale, single(scores[e] / total * self.c["routed_scaling_factor"]))
            out = singles([a + b for a, b in zip(out, y)])
        return halves(out)
