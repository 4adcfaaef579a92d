"""Handwritten digits: 1,437 pictures at 20 clients, 50 labels at the server. Needs no download.

python ops/examples/digits.py [ROUNDS]
"""

import sys

from sklearn.datasets import load_digits

import fedil

rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 15
run = fedil.simulate("digits", "runs/digits-example", rounds=rounds, overwrite=True)

print("\nround  accuracy  updates that counted")
columns = zip(run.history["round"], run.history["accuracy"], run.history["accepted"], strict=True)
for number, accuracy, accepted in columns:
    print(f"{number:5}  {100 * accuracy:6.1f} %  {accepted}")

assert run.baseline is not None
print(f"\nwith the clients' unlabelled pictures  {100 * run.evaluate().accuracy:.1f} %")
print(f"with the server's 50 labels alone      {100 * run.baseline:.1f} %")

# The dataset's own format: bytes, pictures × channels × height × width. scikit-learn has numbers from 0 to 16.
pixels, truth = load_digits(return_X_y=True)
pictures = (pixels[:5] * (255 / 16)).round().astype("uint8").reshape(-1, 1, 8, 8)
found = run.predict(pictures)
for label, shares, digit in zip(found.labels, found.probabilities, truth, strict=False):
    print(f"a {digit} is taken for a {label} ({100 * shares.max():.0f} % sure)")

print(f"\n{run}")
