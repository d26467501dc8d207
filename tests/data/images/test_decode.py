import io
import re
import struct
import sys
import zlib

import numpy as np
import pytest
from PIL import Image, ImageOps

from tests.data.examples import GOLDEN
from vitx.config.errors import ConfigError, MissingExtraError
from vitx.data import order
from vitx.data.dataset import ArraySpec, DatasetInfo
from vitx.data.images import decode, resizing
from vitx.data.images.resizing import ResizeImages
from vitx.data.images.settings import find_channels, find_size, image_spec


def encode(image: Image.Image, kind: str = "PNG", **options) -> bytes:
  buffer = io.BytesIO()
  image.save(buffer, format=kind, **options)
  return buffer.getvalue()


def noise(height: int, width: int, channels: int, seed: int = 0) -> np.ndarray:
  return np.random.default_rng(seed).integers(0, 256, (height, width, channels), np.uint8)


def read(encoded: bytes, channels: int, where="x", value_range=None, upright=False) -> np.ndarray:
  return decode.Encoded(encoded, channels, where, upright, value_range).decode()


def test_a_photo_in_heic_is_read_or_names_its_extra(monkeypatch):
  pillow_heif = pytest.importorskip("pillow_heif")
  pillow_heif.register_heif_opener()
  slope = np.arange(64, dtype=np.uint8)[:, None, None] * np.ones((1, 48, 3), np.uint8)
  content = encode(Image.fromarray(slope), "HEIF", quality=90)
  pixels = read(content, 3, upright=True)
  assert pixels.shape == slope.shape and np.abs(pixels.astype(int) - slope).max() < 8
  with pytest.raises(ConfigError, match=r"^x.heic cannot be read as an image of the formats HEIF"):
    read(content[:100], 3, "x.heic")
  monkeypatch.setitem(sys.modules, "pillow_heif", None)
  with pytest.raises(MissingExtraError, match=r"Reading the photo x.heic needs .*\[heif\]"):
    read(content, 3, "x.heic")


MODES = "1 L LA La P PA RGB RGBA RGBa RGBX CMYK YCbCr LAB HSV"


@pytest.mark.parametrize("mode", MODES.split())
@pytest.mark.parametrize("channels", [1, 3, 4])
def test_every_mode_becomes_eight_bits(mode, channels):
  """The image has one color, which every mode can represent. No file format has all modes."""
  image = Image.new("RGB", (4, 6), (200, 200, 200)).convert("L" if mode == "1" else "RGB")
  through = {"La": "LA", "RGBa": "RGBA", "PA": "P"}.get(mode)
  image = (image if through is None else image.convert(through)).convert(mode)
  result = decode.to_array(decode.to_mode(image, channels))
  assert result.shape == (6, 4, channels) and result.dtype == np.uint8
  color = result[..., :3].reshape(-1, min(channels, 3)).astype(int)
  assert mode == "1" or np.abs(color - 200).max() <= 6
  assert channels < 4 or mode == "RGBX" or (result[..., 3] == 255).all()


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
def test_transparency_shows_white(mode):
  image = Image.new("RGBA", (2, 1), (0, 0, 0, 255))
  image.putpixel((0, 0), (0, 0, 0, 0))
  options = {}
  if mode == "P":
    image, options = Image.new("P", (2, 1), 1), {"transparency": 0}
    image.putpalette([9, 9, 9, 0, 0, 0])
    image.putpixel((0, 0), 0)
  else:
    image = image.convert(mode)
  content = encode(image, **options)
  for encoded in (content, icon(content)):
    assert read(encoded, 3).tolist() == [[[255, 255, 255], [0, 0, 0]]]


def icon(content: bytes | bytearray, width: int = 2, height: int = 1) -> bytes:
  """Returns a Windows icon of one PNG file."""
  entry = struct.pack("<BBBBHHII", width, height, 0, 0, 1, 24, len(content), 22)
  return struct.pack("<HHH", 0, 1, 1) + entry + content


def png(width: int, bits: int, color: int, pixels: bytes, *chunks: tuple[bytes, bytes]) -> bytes:
  """Returns a PNG file of one row with chunks that Pillow does not write."""
  head = b"IHDR", struct.pack(">IIBBBBB", width, 1, bits, color, 0, 0, 0)
  body = b"IDAT", zlib.compress(b"\0" + pixels)
  return b"\x89PNG\r\n\x1a\n" + b"".join(
    struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
    for kind, content in (head, *chunks, body, (b"IEND", b""))
  )


@pytest.mark.parametrize(
  ("bits", "color", "value", "pixels"),
  [
    (2, 0, (1,), b"\x40"),
    (4, 0, (5,), b"\x50"),
    (16, 0, (0x8001,), b"\x80\x01\x00\x00"),
    (16, 2, (0x8001, 0x4002, 0xFF03), b"\x80\x01\x40\x02\xff\x03" + bytes(6)),
  ],
)
def test_a_transparent_value_of_any_depth_shows_white(bits, color, value, pixels):
  transparent = b"tRNS", struct.pack(f">{len(value)}H", *value)
  encoded = png(2, bits, color, pixels, transparent)  # the second pixel is black
  assert read(encoded, 1)[0, :, 0].tolist() == [255, 0]
  assert read(encoded, 4)[0, :, 3].tolist() == [0, 255]


def test_a_half_transparent_pixel_is_blended():
  encoded = encode(Image.new("RGBA", (1, 1), (0, 100, 255, 128)))
  expected = [round(c * 128 / 255 + 127) for c in (0, 100, 255)]
  np.testing.assert_allclose(read(encoded, 3)[0, 0], expected, atol=1)


RAMP = np.linspace(0, 1, 64 * 64, dtype=np.float32).reshape(64, 64)
DEEP = {
  "float": (RAMP, "TIFF"),
  "float of both signs": (2 * RAMP - 1, "TIFF"),
  "reflectance": (1.2 * RAMP, "TIFF"),
  "int32": ((255 * RAMP).astype(np.int32), "TIFF"),
}


@pytest.mark.parametrize("kind", DEEP)
def test_values_without_a_stated_range_need_data_value_range(kind):
  array, format = DEEP[kind]
  encoded, bounds = encode(Image.fromarray(array), format), (array.min().item(), array.max().item())
  with pytest.raises(ConfigError, match=r"scans/1\.tif cannot be read.*data\.value_range"):
    read(encoded, 1, "scans/1.tif")
  pixels = read(encoded, 3, "x", bounds)
  assert (pixels[..., :1] == pixels).all() and pixels.min() == 0 and pixels.max() == 255
  assert np.abs(pixels[..., 0] - 255 * RAMP).max() <= 1.1
  half = read(encoded, 1, "x", (bounds[0], bounds[0] + (bounds[1] - bounds[0]) / 2))
  assert (half[34:] == 255).all() and half.min() == 0


@pytest.mark.parametrize(("format", "bits"), [("TIFF", 10), ("PNG", 15), ("PNG", 8), ("PNG", 16)])
def test_one_line_names_the_largest_value_of_fewer_bits(format, bits, caplog, monkeypatch):
  monkeypatch.setattr(decode, "_reported", set())
  encoded = encode(Image.fromarray(((2**bits - 1) * RAMP).astype(np.uint16)), format)
  for where in ("scans/1", "scans/2"):
    assert read(encoded, 1, where).max() == np.rint((2**bits - 1) / 257)
  lines = [record.getMessage() for record in caplog.records]
  expected = f"scans/1: its largest 16-bit value is {2**bits - 1}, .* data.value_range"
  assert len(lines) == (bits < 16) and all(re.match(expected, line) for line in lines)
  assert read(encoded, 1, "x", (0, 2**bits - 1)).max() == 255


@pytest.mark.parametrize(("bits", "has_line"), [(8, True), (12, True), (16, False)])
def test_one_line_names_deep_colors_of_fewer_bits(bits, has_line, caplog, monkeypatch):
  monkeypatch.setattr(decode, "_reported", set())
  values = np.full((4, 3), 2**bits - 1, ">u2")
  encoded = png(4, 16, 2, values.tobytes())
  assert (read(encoded, 3) == (2**bits - 1) // 256).all()
  assert [f"16-bit colors are below {2**bits}" in x.getMessage() for x in caplog.records] == (
    [True] * has_line
  )
  with pytest.raises(ConfigError, match=r"colors have 16 bits, but data\.value_range is for gray"):
    read(encoded, 3, "x", (0, 4095))


@pytest.mark.parametrize("bits", [10, 12, 15])
def test_the_significant_bits_of_png_give_the_range(bits, caplog):
  """PNG asks for values scaled to 16 bits; many programs store values of fewer bits as they are."""
  high = 2**bits - 1
  values = np.arange(0, high + 1, 2 ** (bits - 10) + 1)
  for factor, divisor in ((1, 1), (2 ** (16 - bits), 1), (65535 / high, 1), (65535 / high, 40)):
    stored = np.rint(values // divisor * factor).astype(">u2")
    encoded = png(
      len(stored), 16, 0, stored.tobytes(), (b"gAMA", bytes(4)), (b"sBIT", bytes([bits]))
    )
    expected = values // divisor * 255 / high
    assert np.abs(read(encoded, 1)[0, :, 0] - expected).max() <= 1
  assert not caplog.records


def test_ranges_that_a_file_states_are_used():
  """The pixel type has 16 bits; TIFF and PGM may state fewer, and TIFF which value is black."""
  whole = (65535 * RAMP).astype(np.uint16)
  files = {
    "PNG": encode(Image.fromarray(whole)),
    "TIFF": encode(Image.fromarray(whole), "TIFF"),
    "JPEG2000": encode(Image.fromarray(whole), "JPEG2000"),
    "PGM": b"P5 64 64 4095 " + (4095 * RAMP).round().astype(">u2").tobytes(),
    "white is 0": encode(Image.fromarray(65535 - whole), "TIFF", tiffinfo={262: 0}),
  }
  for name, encoded in files.items():
    pixels = read(encoded, 1, name)
    assert np.abs(pixels[..., 0] - 255 * RAMP).max() <= 1.1, name
  # Pillow scales the values of a PGM file, but a given range is that of the file.
  half = read(files["PGM"], 1, "half", (0, 2047.5))
  assert np.abs(half[..., 0] - (510 * RAMP).clip(0, 255)).max() <= 1.1
  plain = b"P2 2 1 4095 1024 4095"
  assert read(plain, 1, "plain", (0, 4095))[0, :, 0].tolist() == [64, 255]
  assert (read(encode(Image.new("I;16", (3, 2))), 1, "black") == 0).all()
  with pytest.raises(ConfigError, match="not finite"):
    read(encode(Image.fromarray(np.full_like(RAMP, np.nan)), "TIFF"), 1, "x", (0, 1))


def test_four_channels_are_kept():
  pixels = noise(6, 5, 4)
  for format in ("PNG", "TIFF"):
    encoded = encode(Image.fromarray(pixels), format)
    np.testing.assert_array_equal(read(encoded, 4), pixels)
    gray = encode(Image.fromarray(pixels[..., 0]), format)
    np.testing.assert_array_equal(read(gray, 3), pixels[..., [0, 0, 0]])
  resized = resizing.resize(pixels, 3, "squash")
  for c in range(4):  # no channel is interpreted as transparency
    np.testing.assert_array_equal(
      resized[..., c], resizing.resize(pixels[..., c, None], 3, "squash")[..., 0]
    )
  many = noise(8, 9, 7)
  crops = [
    resizing.resize(many[..., c], 4, "random", order.generator(1, order.TRANSFORM))
    for c in (slice(0, 7), slice(5, 6))
  ]
  np.testing.assert_array_equal(crops[0][..., 5:6], crops[1])


def exif(*entries):
  """Returns EXIF with entries (tag, type, four bytes) that turns the image clockwise."""
  entries = sorted([*entries, (0x0112, 3, struct.pack("<H", 6))])
  body = b"".join(struct.pack("<HHI", t, kind, 1) + x.ljust(4, b"\0") for t, kind, x in entries)
  return b"Exif\0\0II*\0\x08\0\0\0" + struct.pack("<H", len(entries)) + body + bytes(4)


@pytest.mark.filterwarnings("ignore:Corrupt EXIF")
@pytest.mark.parametrize(
  "entry",
  [
    (0x0103, 8, struct.pack("<h", -1)),
    (0x0100, 9, struct.pack("<i", -5)),
    (0x0103, 11, struct.pack("<f", 1.5)),
    (0x010F, 5, struct.pack("<I", 8)),
  ],
)
def test_an_image_with_unusual_exif_is_turned(entry):
  picture = Image.fromarray(noise(24, 32, 3))
  whole = read(encode(picture, "JPEG"), 3)
  encoded = encode(picture, "JPEG", exif=exif(entry))
  turned = read(encoded, 3, "x", upright=True)
  np.testing.assert_array_equal(turned, np.rot90(whole, -1))
  damaged = encode(picture, "JPEG", exif=exif(entry)[:24])
  assert read(damaged, 3, "x", upright=True).size == whole.size


@pytest.mark.parametrize("orientation", range(10))
def test_every_orientation_agrees_with_pillow(orientation):
  exif = Image.Exif()
  exif[0x0112] = orientation
  encoded = encode(Image.fromarray(noise(4, 6, 3)), exif=exif)
  expected = ImageOps.exif_transpose(Image.open(io.BytesIO(encoded)))
  pixels = read(encoded, 3, "x", upright=True)
  np.testing.assert_array_equal(pixels, np.asarray(expected))
  # Images of prepared sets are not turned.
  np.testing.assert_array_equal(read(encoded, 3), noise(4, 6, 3))


def test_pillow_refuses_an_image_of_too_many_pixels():
  content = bytearray(encode(Image.fromarray(noise(8, 8, 3))))
  content[16:24] = struct.pack(">II", 99_999, 13_000)
  content[29:33] = struct.pack(">I", zlib.crc32(content[12:29]))
  with pytest.raises(ConfigError, match=r"here/bomb cannot be read.*1299987000 pixels"):
    read(bytes(content), 3, "here/bomb")


@pytest.mark.parametrize("mode", ["center", "squash"])
def test_an_image_of_the_right_size_is_unchanged(mode):
  for channels in (1, 3, 4):
    pixels = noise(9, 9, channels)
    np.testing.assert_array_equal(resizing.resize(pixels, 9, mode), pixels)
    np.testing.assert_array_equal(resizing.resize(pixels, 9, mode, interpolation="bicubic"), pixels)


def test_boxes_agree_with_timm_for_equal_numbers(monkeypatch):
  for shares, (height, width, *box) in zip(
    GOLDEN["crop_shares"], GOLDEN["crop_boxes"], strict=True
  ):
    # timm draws the top before the left side; `draw_box` draws the left side first.
    ours = shares[:, [0, 1, 3, 2]]
    monkeypatch.setattr(order, "uniform", lambda bits, count, ours=ours: ours.reshape(count))
    left, top, right, bottom = resizing.draw_box(int(height), int(width), None)
    assert [top, left, bottom - top, right - left] == box


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
def test_a_random_crop_is_cut_out_and_then_resized(interpolation, channels):
  pixels = noise(60, 50, channels)
  bits = [order.generator(3, order.TRANSFORM, 5, 1) for _ in range(2)]
  left, top, right, bottom = map(int, resizing.draw_box(60, 50, bits[0]))
  assert (bottom - top, right - left) != (60, 50)
  result = resizing.resize(pixels, 16, "random", bits[1], interpolation)
  picture = Image.fromarray(pixels[..., 0] if channels == 1 else pixels)
  filters = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}
  expected = picture.crop((left, top, right, bottom)).resize((16, 16), filters[interpolation])
  np.testing.assert_array_equal(result, np.asarray(expected).reshape(16, 16, channels))


def test_a_random_interpolation_is_drawn_from_the_bits_of_the_example():
  pixels, crops = noise(40, 60, 3), {}
  for how in ("bilinear", "bicubic", "random"):
    crops[how] = [
      resizing.resize(pixels, 8, "random", order.generator(1, order.TRANSFORM, i), how)
      for i in range(200)
    ]
  linear, cubic = (
    np.array([np.array_equal(a, b) for a, b in zip(crops["random"], crops[how], strict=True)])
    for how in ("bilinear", "bicubic")
  )
  assert (linear ^ cubic).all() and abs(linear.sum() - 100) < 4 * np.sqrt(50)


@pytest.mark.parametrize("shape", [(50, 73, 3), (91, 40, 1), (32, 32, 3), (32, 41, 3)])
@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic", "random"])
def test_the_center_agrees_with_torchvision(shape, interpolation):
  """The expected image follows the arithmetic of torchvision's Resize(32) and CenterCrop(28)."""
  pixels, short = noise(*shape), min(shape[:2])
  size = tuple(32 * side // short for side in shape[:2])
  how = Image.Resampling.BILINEAR if interpolation == "bilinear" else Image.Resampling.BICUBIC
  picture = Image.fromarray(pixels[..., 0] if shape[2] == 1 else pixels)
  resized = np.asarray(picture.resize(size[::-1], how)).reshape(*size, -1)
  top, left = (round((side - 28) / 2) for side in size)
  result = resizing.resize_short_side(pixels, 32, interpolation)
  assert result.shape == (32, 32, shape[2])
  np.testing.assert_array_equal(result[2:30, 2:30], resized[top : top + 28, left : left + 28])


@pytest.mark.parametrize(
  ("shape", "size", "box"),  # (left, top, right, bottom) of the middle
  [
    ((40, 60, 3), (20, 10), (20, 0, 40, 40)),
    ((40, 60, 1), (10, 30), (0, 10, 60, 30)),
    ((40, 60, 3), (20, 30), (0, 0, 60, 40)),
  ],
)
def test_rectangles_are_cut_out_of_the_middle(shape, size, box):
  image = noise(*shape)
  picture = Image.fromarray(image if shape[2] == 3 else image[..., 0])
  height, width = size
  for mode, part in (("center", box), ("squash", None)):
    expected = picture.resize((width, height), Image.Resampling.BILINEAR, part)
    np.testing.assert_array_equal(resizing.resize(image, size, mode), decode.to_array(expected))
  covered = resizing.resize_short_side(image, size, "bilinear")
  assert covered.shape == (*size, shape[2])
  random = resizing.resize(image, size, "random", order.generator(0, 0, 1))
  assert random.shape == covered.shape


@pytest.mark.parametrize(
  ("decode_size", "stored", "image_size", "crop_ratio", "expected"),
  [
    (None, None, (224, 160), 0.875, (256, 183)),
    (None, (64, 64), (32, 16), 1.0, (64, 32)),
    (None, (28, 32), (28, 32), 0.9, (28, 32)),
    (None, (30, 90), (20, 20), 1.0, (30, 30)),
    ((50, 40), (64, 64), (32, 16), 1.0, (50, 40)),
    (40, (32, 32), 24, 1.0, 40),
    (None, (32, 32), None, 1.0, 32),
    (None, (30, 50), 24, 1.0, 30),
    (None, None, 224, 0.875, 256),
    (None, None, 224, 1.0, 224),
  ],
)
def test_the_decode_size_follows_from_image_and_model(
  make_data, decode_size, stored, image_size, crop_ratio, expected
):
  info = DatasetInfo("x", image_spec(3, stored or (None, None)))
  data = make_data(decode_size=decode_size, image_size=image_size)
  assert decode.decode_size(data, info, crop_ratio) == expected


@pytest.mark.parametrize("shape", [(10, 200), (200, 10), (1, 1)])
def test_the_random_box_of_an_extreme_image_is_central(shape):
  left, top, right, bottom = resizing.draw_box(*shape, order.generator(0, order.TRANSFORM))
  assert right > left and bottom > top
  if max(shape) > 1:
    assert abs((left + right) / 2 - shape[1] / 2) <= 1
    assert abs((top + bottom) / 2 - shape[0] / 2) <= 1


def test_images_of_unknown_size_are_refused(make_data):
  info = DatasetInfo("mine", {"vector": ArraySpec((4,), "float32")})
  for find in (find_size, find_channels):
    with pytest.raises(ConfigError, match=r"'mine' has no images.*vector float32 \(4,\)"):
      find(info)
  varying = DatasetInfo("varying", image_spec(3))
  with pytest.raises(ConfigError, match=r"data\.image_size"):
    decode.decode_size(make_data(), varying, 1.0)


def test_images_are_drawn_in_training_only():
  example = {"image": noise(20, 30, 3), "label": 3}
  bits = order.generator(0, order.TRANSFORM)
  assert ResizeImages(8, "random").draws and not ResizeImages(8, "center").draws
  row = ResizeImages(8, "random")(example, bits)
  assert row["image"].shape == (8, 8, 3) and row["label"].dtype == np.int32
  evaluated = ResizeImages(8, "random", train=False)
  assert not evaluated.draws
  center = resizing.resize_short_side(example["image"], 8, "bilinear")
  np.testing.assert_array_equal(evaluated(example)["image"], center)
  assert not (row["image"] == center).all()
