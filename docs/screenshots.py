"""Take README's two screenshots of a dashboard: `python docs/screenshots.py report.html`."""

import io
import sys
from pathlib import Path

from PIL import Image

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
from browser import chromium

SHOTS = {
    "report": ({"width": 1520, "height": 1100}, "light", "#main"),
    "report-phone": ({"width": 390, "height": 844}, "dark", "#differences"),
}

page = Path(sys.argv[1]).resolve().as_uri()
with chromium() as browser:
    for name, (size, scheme, place) in SHOTS.items():
        tab = browser.new_page(viewport=size, color_scheme=scheme)
        tab.goto(page)
        tab.evaluate("place => document.querySelector(place).scrollIntoView()", place)
        shot = Image.open(io.BytesIO(tab.screenshot())).convert("RGB")
        shot.quantize(128).save(Path(__file__).with_name(f"{name}.png"), optimize=True)  # a third of the size
