# label: full
"""The page at /, in a headless browser: it streams, folds the reasoning, shows calls, stops, retries, and asks nobody else."""
import os
import sys

sys.path.insert(0, os.path.join(os.environ["QUIRE_SOURCE"], "tests", "support"))
import browser  # noqa: E402
from served import Faults, Served  # noqa: E402

if not browser.find():
    print("skipped: no Chromium is here")
    sys.exit(77)

f = Faults()
LAST = "[...document.querySelectorAll('.assistant')].pop()"

with Served("--max-num-seqs", "4") as s, browser.Browser(s.url + "/") as b:
    f.expect("the model's name", b.wait("document.querySelector('#model').textContent.includes('tiny-v41')"), b.run("document.body.innerText"))
    b.type("#temperature", "0")
    b.type("#prompt", "Tell me a story about a dragon.")
    b.click("#send")
    f.expect("an answer", b.wait("!document.querySelector('#send').disabled"), "")
    text = b.run(LAST + ".querySelector('.text:not(details .text)').textContent")
    whole = s.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "Tell me a story about a dragon."}], "temperature": 0})[2]
    message = whole["choices"][0]["message"]
    f.expect("the answer's text", text == message["content"], (text, message))
    f.expect("the reasoning is there, folded", b.run(LAST + ".querySelector('details .text').textContent") == message["reasoning_content"] and
             not b.run(LAST + ".querySelector('details').open"), "")
    f.expect("figures of the answer", b.wait("document.querySelector('#answer').textContent.includes('ended bystop')"), b.run("document.querySelector('#answer').textContent"))
    f.expect("figures of the server", b.wait("document.querySelector('#server').textContent.includes('cache hits')"), "")
    if len(sys.argv) > 1:
        b.picture(sys.argv[1])
    b.click("#retry")
    f.expect("retry", b.wait("!document.querySelector('#send').disabled") and b.run("document.querySelectorAll('.assistant').length") == 1 and
             b.run(LAST + ".querySelector('.text:not(details .text)').textContent") == message["content"], "")
    b.type("#prompt", "And another one.")
    b.run("document.querySelector('#prompt').dispatchEvent(new KeyboardEvent('keydown', {key: 'Enter', bubbles: true, cancelable: true}))")
    f.expect("a second question", b.wait("document.querySelectorAll('.assistant').length === 2 && !document.querySelector('#send').disabled"), "")

    # a call, as the server would send it
    b.run("""new Answer().take({choices: [{delta: {tool_calls: [{index: 0, id: 'c', function: {name: 'tide', arguments: '{"port": "<b>Brest</b>"}'}}]}}]})""")
    f.expect("a call is shown, as text", b.run(LAST + ".querySelector('.call').textContent") == 'tide {"port": "<b>Brest</b>"}' and
             b.run(LAST + ".querySelectorAll('.call b').length") == 1, b.run(LAST + ".innerHTML"))

    # an answer that is stopped, and one that the server refuses
    b.click("#clear")
    b.run("window.realFetch = fetch; window.fetch = (u, o) => realFetch(u, o && o.body ? {...o, body: JSON.stringify({...JSON.parse(o.body), ignore_eos: true, max_tokens: 30000})} : o)")
    b.type("#prompt", "Go on for ever.")
    b.click("#send")
    f.expect("it streams", b.wait(LAST + " && " + LAST + ".textContent.length > 30"), "")
    b.click("#stop")
    f.expect("stop", b.wait("!document.querySelector('#send').disabled") and b.run(LAST + ".textContent").endswith("stopped"), "")
    f.expect("the engine stopped too", b.wait("document.querySelector('#server').textContent.includes('running0')", 10), "")
    b.run("document.querySelector('#temperature').value = 3; window.fetch = realFetch")
    b.type("#prompt", "Too hot?")
    b.click("#send")
    f.expect("a refusal is shown", b.wait(LAST + ".textContent.includes('0 to 2')"), b.run(LAST + ".textContent"))
    errors = [e for e in b.errors() if "400" not in str(e)]
    f.expect("no complaint, no other address", not errors, errors[:3])
sys.exit(1 if f.count else 0)
