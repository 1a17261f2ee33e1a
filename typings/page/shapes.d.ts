// Shapes of what the page's scripts pass around; `tsc` checks the scripts against them.

type Grid = [rows: number, columns: number];
type Pixel = [row: number, column: number]; // also a shift
type Place = [down: number, across: number]; // on an element, as shares of it
type Head = [layer: number, head: number];
type Floats = Float32Array | Float64Array; // row by row
type Bytes = Uint8Array | Uint8ClampedArray; // of an image: rows, columns, channels

/** Inputs by outputs. */
interface Linear { kernel: Floats; bias: Floats | null }
interface Norm { scale: Floats; bias: Floats }

/** A content score as a product: `query` and `key` are rank by pixels. */
interface Factor { rank: number; query: Floats; key: Floats }
type Factors = Record<string, Factor>; // by score term

/** What position scores are computed from, see position_parameters in scores.py. */
interface Position {
  term: string;
  kind: "pixels" | "shifts" | "axes" | "quadratic" | "gaussian";
  centre?: Pixel[];
  spread?: (number | number[][])[];
  table?: number[][][];
  row?: number[][];
  column?: number[][];
}
interface Layer { heads: number; position: Position | null; gate: number[] | null }

/** Linear maps and norms of a block. */
interface Block {
  readers: { query: Linear | null; key: Linear | null; terms: Record<string, any>; positions?: Floats }[];
  value: Linear | null;
  output: Linear;
  dense: Linear | null;
  attentionNorm: Norm;
  intermediate: Linear;
  transformed: Linear;
  outputNorm: Norm;
}
interface Network {
  downsample: number;
  window: number;
  mean: number[];
  std: number[];
  epsilon: number;
  classes: string[];
  embedding: Linear;
  layers: Block[];
  norm: Norm | null;
  classifier: Linear;
  test: { pixels: any; labels: number[] } | null;
  costliest: number | null;
  half: boolean;
  weights: any; // base64 until the network is started
}
interface Picture {
  name: string;
  label: string;
  source: string;
  prediction?: string;
  confidence?: number;
  image?: any; // what can be drawn of it
}

/** What a page is made of, see page_data in build.py. */
interface PageData {
  title: string;
  facts: { dataset: string; encoding: string; step: number };
  size: Grid;
  grid: Grid;
  channels: number;
  terms: string[];
  contentTerms: string[];
  layers: Layer[];
  epsilon: number;
  epochs: { epoch: number; layers?: { position: Position }[] }[];
  network: Network | null;
  pictures: Picture[];
}

interface Move { centre: Pixel; factor: number }
/** The first `layers` are convolutions of `size` x `size`, or attend inside such a window. */
interface Convolved { layers: number; size: number; isTruncated?: boolean }
interface Changes { terms: Set<string>; off: Set<string>; convolved: Convolved; key?: string }

/** What a link restores, see view.js. */
interface View {
  picture: number;
  query: Pixel;
  head: Head | null;
  terms: Set<string>;
  softmax: boolean;
  epoch: number | null;
  off: Set<string>;
  moved: Record<string, Move>;
  convolved: Convolved;
  layer: number;
  tiles: "image" | "map";
  step: number | null;
}

/** What lies over the image, see overlayOf. */
interface Overlay {
  map?: Float64Array;
  range?: [low: number, high: number];
  centre?: Pixel;
  handle?: Pixel;
  centres?: { centre: Pixel; name: string; radius: number }[];
}

/** What the worker says of an image; each array is one per layer, of `logits` one more. */
interface Answer {
  logits?: Floats[];
  content?: (Factors[] | null)[];
  kernels?: (Floats[] | undefined)[];
  attention?: Floats[][];
  shifted: Bytes[][];
  picture: number;
}
interface Count { right: number; of: number }

/** A layer that learns: (heads, 2), (heads,) and (heads, D, D), flat. */
interface Student { centre: Float64Array; spread: Float64Array; maps: Float64Array }
interface LessonRecord { step: number; error: number; centre: number[]; spread: number[] }

// What the DOM has one type for, and the page knows better; and pairs, which stay pairs.
interface EventTarget { closest(selectors: string): any; type: any }
interface ParentNode { hidden: boolean; querySelector(selectors: string): any }
interface Array<T> { map<U>(this: [T, T], callback: (value: T, index: number) => U): [U, U] }
