#!/usr/bin/env python3
"""Makes a small H.264 stream of which every sample is known (nvdec.c checks them): stream.py WIDTH HEIGHT FRAMES > FILE

Baseline profile, every picture an IDR picture, every macroblock I_PCM: the samples themselves, so that nothing is
lost and no encoder is needed. Sample (x, y) of plane p in frame f is 16 + (7x + 3y + 11f + 37p) % 200.
"""
import sys


class Bits:
    def __init__(self):
        self.text = []

    def u(self, n, value):
        self.text.append(format(value, f"0{n}b"))

    def ue(self, value):
        code = format(value + 1, "b")
        self.text.append("0" * (len(code) - 1) + code)

    def se(self, value):
        self.ue(2 * value - 1 if value > 0 else -2 * value)

    def align(self, bit="0"):
        length = sum(map(len, self.text))
        self.text.append(bit * (-length % 8))

    def trailing(self):
        self.u(1, 1)
        self.align()

    def bytes(self):
        text = "".join(self.text)
        return bytes(int(text[i : i + 8], 2) for i in range(0, len(text), 8))


def nal(ref, kind, payload):
    out, zeros = bytearray(), 0
    for b in payload:
        if zeros >= 2 and b <= 3:
            out.append(3)  # emulation prevention
            zeros = 0
        out.append(b)
        zeros = zeros + 1 if b == 0 else 0
    return b"\0\0\0\1" + bytes([ref << 5 | kind]) + bytes(out)


def parameter_sets(columns, rows):
    s = Bits()
    s.u(8, 66), s.u(8, 0xC0), s.u(8, 30)  # baseline, constraints 0 and 1, level 3
    s.ue(0)  # seq_parameter_set_id
    s.ue(0), s.ue(2)  # log2_max_frame_num - 4, pic_order_cnt_type
    s.ue(1), s.u(1, 0)  # max_num_ref_frames, no gaps
    s.ue(columns - 1), s.ue(rows - 1)
    s.u(1, 1), s.u(1, 1), s.u(1, 0), s.u(1, 0)  # frames only, direct_8x8, no cropping, no VUI
    s.trailing()
    p = Bits()
    p.ue(0), p.ue(0)
    p.u(1, 0), p.u(1, 0)  # CAVLC, no bottom field order
    p.ue(0), p.ue(0), p.ue(0)  # slice groups - 1, references - 1
    p.u(1, 0), p.u(2, 0)  # no weighted prediction
    p.se(0), p.se(0), p.se(0)  # QP, QS, chroma offset
    p.u(1, 1), p.u(1, 0), p.u(1, 0)  # deblocking control, no constrained intra, no redundant pictures
    p.trailing()
    return nal(3, 7, s.bytes()) + nal(3, 8, p.bytes())


def sample(plane, x, y, frame):
    return 16 + (7 * x + 3 * y + 11 * frame + 37 * plane) % 200


def picture(columns, rows, frame):
    b = Bits()
    b.ue(0), b.ue(7), b.ue(0)  # first macroblock, slice_type I (all), pps
    b.u(4, 0)  # frame_num
    b.ue(frame & 1)  # idr_pic_id: another than the picture's before
    b.u(1, 0), b.u(1, 0)  # no_output_of_prior_pics, long_term_reference
    b.se(0)  # slice_qp_delta
    b.ue(1)  # no deblocking
    for row in range(rows):
        for column in range(columns):
            b.ue(25)  # I_PCM
            b.align()
            for plane, side in ((0, 16), (1, 8), (2, 8)):
                for y in range(side):
                    for x in range(side):
                        b.u(8, sample(plane, column * side + x, row * side + y, frame))
    b.trailing()
    return nal(3, 5, b.bytes())


def main():
    width, height, frames = map(int, sys.argv[1:4])
    if width % 16 or height % 16:
        sys.exit("stream.py: width and height must be multiples of 16")
    out = sys.stdout.buffer
    out.write(parameter_sets(width // 16, height // 16))
    for frame in range(frames):
        out.write(picture(width // 16, height // 16, frame))


if __name__ == "__main__":
    main()
