"""What is said of a prediction: a label or, below a threshold, none; the most probable classes, or all of them."""

from collections.abc import Sequence
from dataclasses import dataclass

from ops.inspect.predict import Prediction

ABSTAINS = "(unsure)"


@dataclass(frozen=True)
class Answers:
    class_names: Sequence[str]
    has_rows: bool
    threshold: float = 0.0
    """Below this confidence there is no label."""
    top: int = 1
    """So many classes, the most probable first"""
    probabilities: bool = False
    """Of all classes"""

    def label(self, prediction: Prediction) -> str | None:
        return None if prediction.confidence < self.threshold else self._ranked(prediction)[0][0]

    def _ranked(self, prediction: Prediction) -> list[tuple[str, float]]:
        named = zip(self.class_names, prediction.probabilities, strict=True)
        return sorted(named, key=lambda pair: -pair[1])[: self.top]

    def as_json(self, prediction: Prediction) -> dict[str, object]:
        found: dict[str, object] = {"file": str(prediction.file)}
        if prediction.row is not None:
            found["row"] = prediction.row
        found |= {"label": self.label(prediction), "confidence": prediction.confidence}
        if self.top > 1:
            found["top"] = [{"label": name, "probability": share} for name, share in self._ranked(prediction)]
        if self.probabilities:
            found["probabilities"] = dict(zip(self.class_names, prediction.probabilities, strict=True))
        return found

    def columns(self) -> list[str]:
        ranks = [f"{name}{place}" for place in range(2, self.top + 1) for name in ("label", "confidence")]
        named = [f"p({name})" for name in self.class_names] if self.probabilities else []
        return ["file", *(["row"] if self.has_rows else []), "label", "confidence", *ranks, *named]

    def csv_row(self, prediction: Prediction) -> list[object]:
        where: list[object] = [prediction.file, *([prediction.row] if self.has_rows else [])]
        others = [cell for name, share in self._ranked(prediction)[1:] for cell in (name, f"{share:.6f}")]
        shares = [f"{share:.6f}" for share in prediction.probabilities] if self.probabilities else []
        return [*where, self.label(prediction) or "", f"{prediction.confidence:.6f}", *others, *shares]

    def line(self, prediction: Prediction) -> str:
        """The place last: a path may have any length."""
        width = max(len(ABSTAINS) if self.threshold else 0, *map(len, self.class_names))
        first, *others = self._ranked(prediction)
        said = [(self.label(prediction) or ABSTAINS, first[1]), *others]
        if self.probabilities:
            said += [
                (f"p({name})", p) for name, p in zip(self.class_names, prediction.probabilities, strict=True)
            ]
        cells = [f"{name:{width}}  {100 * share:5.1f} %" for name, share in said]
        place = prediction.file if prediction.row is None else f"{prediction.file}:{prediction.row}"
        return "  ".join([*cells, str(place)])
