# label: full release
"""Every question of golden/models, and the choices by the plain operators too."""
import trained

results = []
for model in trained.MODELS:
    results += [trained.quality(model, None, "--concurrency", "8"), trained.greedy(model, "--device", "cpu-reference")]
trained.end(results)
