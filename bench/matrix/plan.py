"""Tables for ``matrix.cu``: parts of the picture, their 8 groups of up to 32 neighbouring rows, windows."""

import numpy as np


class Shape:
    boxes = ((25, 28), (18, 20), (15, 20), (14, 20))  # (height, width) of a part's windows
    lines = (16, 14, 12, 12)  # of a group's part of them, 16 pixels wide
    strips, columns, groups = 7, 12, 8
    flat = 0.75  # cut across if wider than this share of the height


def split(ids, points, groups, flat):
    """``groups`` lists of the queries ``ids``, neighbours by (n, 2) ``points`` in finest pixels."""
    if groups == 1:
        return [ids]
    p = points[ids]
    span = p.max(0) - p.min(0)
    axis = 0 if span[0] >= span[1] * flat else 1
    left = groups // 2
    cut = -(-len(ids) * left // groups)
    order = np.lexsort((p[:, 1 - axis], p[:, axis]))
    return split(ids[order[:cut]], points, left, flat) + split(
        ids[order[cut:]], points, groups - left, flat
    )


def plan(levels, references, locations, shape=Shape, kept=0.98):
    """order (G, 32), origin (G, L, 2), counts (G), corners (parts, L, 2); a part's groups follow each other."""
    sizes = np.array([(w, h) for h, w in levels], float)
    points = references * sizes[0]
    chosen = np.random.default_rng(0).choice(len(references), 2000, replace=False)
    some = np.asarray(locations[:, chosen], np.float64)  # (B, q, 1, L, P, 2)
    away = (some - references[chosen][:, None, None, None]) * sizes[:, None]
    away = away.transpose(3, 5, 0, 1, 2, 4).reshape(len(levels), 2, -1)
    middle = sum(np.quantile(away, q, axis=-1) for q in ((1 - kept) / 2, (1 + kept) / 2)) / 2

    def corner(refs, number, box):
        centre = (refs.min(0) + refs.max(0)) / 2 * sizes[number] - 0.5 + middle[number]
        return np.round(centre - (np.array(box) - 1) / 2)

    order, origin, counts, corners = [], [], [], []
    lines = np.array_split(np.lexsort((points[:, 0], points[:, 1])), shape.strips)
    for strip in lines:
        for part in np.array_split(
            strip[np.lexsort((points[strip, 1], points[strip, 0]))], shape.columns
        ):
            boxes = [np.array(b[::-1]) for b in shape.boxes]
            own = [
                np.maximum(
                    np.minimum(corner(references[part], n, boxes[n]), sizes[n] + 1 - boxes[n]), -1
                )
                for n in range(len(levels))
            ]
            corners.append(own)
            for group in split(part, points, shape.groups, shape.flat):
                inner = [np.array((16, k)) for k in shape.lines]
                origin.append(
                    [
                        np.clip(
                            corner(references[group], n, inner[n]),
                            own[n],
                            own[n] + boxes[n] - inner[n],
                        )
                        for n in range(len(levels))
                    ]
                )
                order.append(np.concatenate([group, np.repeat(group[-1:], 32 - len(group))]))
                counts.append(len(group))
    return (
        np.array(order, np.int32),
        np.array(origin).astype(np.int32),
        np.array(counts, np.int32),
        np.array(corners).astype(np.int32),
    )


def lost(levels, order, origin, counts, locations, shape=Shape):
    """(B, G) samples that touch their level but not their group's part of the window, by level in a list."""
    sizes = np.array([(w, h) for h, w in levels], np.float32)
    valid = (np.arange(32) < counts[:, None])[None, :, :, None]
    xy = locations[:, order][:, :, :, 0].astype(np.float32)  # (B, G, 32, L, P, 2)
    out = []
    for n in range(len(levels)):
        pixel = np.floor(xy[:, :, :, n] * sizes[n] - np.float32(0.5))
        touch = ((pixel >= -1) & (pixel < sizes[n])).all(-1)
        at = pixel - origin[None, :, None, None, n]
        held = ((at >= 0) & (at < np.array([15, shape.lines[n] - 1]))).all(-1)
        out.append((touch & ~held & valid).sum((2, 3)))
    return out
