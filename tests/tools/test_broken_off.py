# label: release
"""quire synth and quantize that are broken off, or cannot write, leave the folder as they found it; the next try works."""
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

QUIRE = os.environ["QUIRE_PROGRAM"]
MODELS = os.path.join(os.environ["QUIRE_SOURCE"], "models")
SYNTH = ["synth", "--config", f"{MODELS}/tiny-v4/config.json", "--out"]
QUANTIZE = ["quantize", "--w8a8", "--model", f"{MODELS}/tiny-v4", "--out"]


def limit(size):
    return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


def obey():
    """Under nohup, or behind a shell, these are ignored."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def quire(*line, **how):
    done = subprocess.run([QUIRE, *line], capture_output=True, text=True, **how)
    return done.returncode, done.stdout, done.stderr


class BrokenOff(unittest.TestCase):
    def setUp(self):
        self.scratch = tempfile.TemporaryDirectory()
        self.addCleanup(self.scratch.cleanup)
        self.out = os.path.join(self.scratch.name, "out")

    def test_a_file_beyond_its_limit_is_one_sentence(self):
        for tool in (SYNTH, QUANTIZE):
            for size in (100, 5000, 200000):
                status, out, err = quire(*tool, self.out, preexec_fn=limit(size))
                self.assertEqual((status, out), (1, ""), err)
                self.assertRegex(err, rf"^quire {tool[0]}: {self.out}/.*: File too large\n$")
                self.assertEqual(os.listdir(self.scratch.name), [])

    def test_a_folder_that_was_there_stays_empty(self):
        for tool in (SYNTH, QUANTIZE):
            os.makedirs(self.out, exist_ok=True)
            self.assertEqual(quire(*tool, self.out, preexec_fn=limit(5000))[0], 1)
            self.assertEqual(os.listdir(self.out), [])
        self.assertEqual(quire(*SYNTH, self.out)[0], 0)

    def test_a_signal_leaves_nothing(self):
        for tool in (SYNTH, QUANTIZE):
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                for attempt in range(20):
                    if self.broken_off(tool, number):
                        break
                else:
                    self.fail(f"{tool[0]} is always done before the signal comes")

    def broken_off(self, tool, number):
        """Stopped as soon as its first file stands there, so that the signal finds it at work; false when it was done."""
        with subprocess.Popen([QUIRE, *tool, self.out], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                              preexec_fn=obey) as p:
            while p.poll() is None and not (os.path.isdir(self.out) and os.listdir(self.out)):
                time.sleep(0.0002)
            p.send_signal(signal.SIGSTOP)
            p.send_signal(number)
            p.send_signal(signal.SIGCONT)
            out, err = p.communicate()
        if p.returncode == 0:
            self.assertIn("config.json", os.listdir(self.out))
            shutil.rmtree(self.out)
            return False
        self.assertEqual((p.returncode, out), (-number, ""), err)
        self.assertRegex(err, rf"^quire {tool[0]}: {self.out}: interrupted by the signal \".+\"; what was written is removed\n$")
        self.assertFalse(os.path.exists(self.out))
        return True

    def test_a_full_folder_says_what_it_holds(self):
        os.mkdir(self.out)
        open(os.path.join(self.out, "notes"), "w").close()
        for tool in (SYNTH, QUANTIZE):
            status, out, err = quire(*tool, self.out)
            self.assertEqual((status, out), (1, ""))
            self.assertEqual(err, f"quire {tool[0]}: {self.out}: is not empty, it holds notes; remove the folder or name another\n")
        self.assertEqual(os.listdir(self.out), ["notes"])


if __name__ == "__main__":
    sys.exit(0 if unittest.main(exit=False).result.wasSuccessful() else 1)
