# label: release
"""The trained models choose, judge and answer as golden/models says; test_trained_full.py asks every question."""
import trained

results = []
for model in trained.MODELS:
    results += [trained.greedy(model), trained.nll(model, "nll"), trained.quality(model, 2)]
results.append(trained.nll("tiny-v4", "nll_w8a8", "--profile", "w8a8"))
trained.end(results)
