# label: release
"""quire op --against: a NaN on either device fails by name and place, and is no difference of nothing."""
import json
import os
import struct
import subprocess
import sys
import tempfile
import unittest

QUIRE = os.environ["QUIRE_PROGRAM"]
OPERATOR = os.path.join(os.environ["QUIRE_SOURCE"], "tests", "golden", "ops4", "02-rmsnorm-both-a.safetensors")


def op(path):
    done = subprocess.run([QUIRE, "op", "--in", path, "--device", "cpu", "--against", "cpu-reference", "--json"],
                          capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr


class Against(unittest.TestCase):
    def test_equal_devices_differ_in_nothing(self):
        status, out, err = op(OPERATOR)
        self.assertEqual((status, err), (0, ""))
        self.assertTrue(json.loads(out)["differences"])

    def test_a_nan_is_named_with_its_place(self):
        with open(OPERATOR, "rb") as file:
            data = bytearray(file.read())
        length = struct.unpack_from("<Q", data)[0]
        row = json.loads(data[8 : 8 + length])["in.x"]
        columns = row["shape"][-1]
        struct.pack_into("<H", data, 8 + length + row["data_offsets"][0] + 2 * (columns + 3), 0x7FC0)  # row 1, column 3
        with tempfile.NamedTemporaryFile(suffix=".safetensors") as file:
            file.write(data)
            file.flush()
            status, out, err = op(file.name)
        self.assertEqual((status, out), (1, ""))
        self.assertRegex(err, rf"^quire op: out\.\w+: point {columns} is -?nan on cpu\S* and -?nan on cpu-reference, wanted no NaN\n$")


if __name__ == "__main__":
    sys.exit(0 if unittest.main(exit=False).result.wasSuccessful() else 1)
