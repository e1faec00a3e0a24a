# label: full
"""HTTPS by --tls-certificate and --tls-key; a file that is none of them is named before anything listens."""
import os
import shutil
import ssl
import subprocess
import sys
import tempfile
import urllib.request

sys.path.insert(0, os.path.join(os.environ["QUIRE_SOURCE"], "tests", "support"))
from served import MODEL, PROGRAM, Faults, Served  # noqa: E402

f = Faults()
if not shutil.which("openssl"):
    print("skipped: there is no openssl to make a certificate with")
    sys.exit(77)

with tempfile.TemporaryDirectory() as folder:
    at = {name: os.path.join(folder, name) for name in ("certificate", "key", "other", "locked", "text", "cut", "damaged", "absent")}
    for line in (f"req -x509 -newkey rsa:2048 -nodes -keyout {at['key']} -out {at['certificate']} -days 2 -subj /CN=localhost -addext subjectAltName=IP:127.0.0.1",
                 f"genrsa -out {at['other']} 2048", f"rsa -aes128 -passout pass:word -in {at['key']} -out {at['locked']}"):
        subprocess.run(["openssl", *line.split()], check=True, capture_output=True)
    certificate = open(at["certificate"]).read()
    for name, text in (("text", "hello"), ("cut", certificate[:300]), ("damaged", certificate.replace("M", "!"))):
        with open(at[name], "w") as file:
            file.write(text)

    with open(os.path.join(folder, "leaks"), "w") as file:
        file.write("leak:libgnutls\nleak:libtasn1\n")  # which keep what they have read of a damaged certificate
    own = {**os.environ, "LSAN_OPTIONS": f"suppressions={folder}/leaks:print_suppressions=0"}

    for shown, key, *said in (("text", "key", "text: ", "no certificate"), ("certificate", "text", "text: ", "no private key"), ("key", "certificate", "key: ", "no certificate"),
                              ("cut", "key", "cut: ", "no certificate"), ("certificate", "locked", "locked: ", "encrypted"), ("certificate", "other", "certificate and", "other: "),
                              ("damaged", "key", "damaged and", "damaged"), ("absent", "key", "absent: ")):
        done = subprocess.run([PROGRAM, "serve", "--model", MODEL, "--port", "0", "--quiet", "--tls-certificate", at[shown], "--tls-key", at[key]],
                              capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=60, env=own)
        f.expect(f"{shown} and {key}", done.returncode == 1 and not done.stdout and all(word in done.stderr for word in said) and done.stderr.count("\n") == 1, done)
    done = subprocess.run([PROGRAM, "serve", "--model", MODEL, "--port", "0", "--tls-key", at["key"]], capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=60)
    f.expect("half of it", done.returncode == 2 and "both or none" in done.stderr, done)

    with Served("--tls-certificate", at["certificate"], "--tls-key", at["key"]) as s:
        trust = ssl.create_default_context(cafile=at["certificate"])
        with urllib.request.urlopen(s.url + "/health", context=trust, timeout=60) as answer:
            f.expect("HTTPS", s.url.startswith("https://") and answer.status == 200, answer.status)
    f.expect("a quiet end", s.status == 0, (s.status, s.said))
sys.exit(1 if f.count else 0)
