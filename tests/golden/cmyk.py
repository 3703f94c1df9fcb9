"""JPEG files with four inks, and the RGB pixels that Pillow makes of them.

    pip install pillow==13.0.0
    python tests/golden/cmyk.py

Writes cmyk.jpg (Adobe marker, transform 0), ycck.jpg (the same with transform 2: its first three
components count as Y, Cb, Cr) and, for each, NAME.rgb: 24 rows of 40 pixels of three bytes.
"""

from pathlib import Path

from PIL import Image

HERE = Path(__file__).parent
SIZE = (40, 24)


def inks() -> Image.Image:
    """Smooth gradients, so that what JPEG loses is small."""
    image = Image.new("CMYK", SIZE)
    width, height = SIZE
    for y in range(height):
        for x in range(width):
            cyan, magenta = x * 255 // (width - 1), y * 255 // (height - 1)
            image.putpixel((x, y), (cyan, magenta, (cyan + magenta) // 3, (255 - cyan) // 2))
    return image


def main() -> None:
    cmyk, ycck = HERE / "cmyk.jpg", HERE / "ycck.jpg"
    inks().save(cmyk, quality=95)
    content = cmyk.read_bytes()
    marker = content.index(b"Adobe")
    # Behind the name: version (2 bytes), flags (2 and 2), transform.
    assert content[marker + 11] == 0
    ycck.write_bytes(content[: marker + 11] + b"\x02" + content[marker + 12 :])
    for path in (cmyk, ycck):
        path.with_suffix(".rgb").write_bytes(Image.open(path).convert("RGB").tobytes())


if __name__ == "__main__":
    main()
