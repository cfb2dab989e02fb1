// The data of each page, as Python's dataclasses declare them.
// Do not edit: `python -m tests.support.page_data_types` writes this file.

/** An object with a list for each field of some rows. */
type Columns<Row> = { [Field in keyof Row]: Row[Field][] };

/** The data of each panel that a page has. */
interface Panels {
  steps?: (DiffRow[] | null)[];
  findings?: FindingRow[];
  precision?: PrecisionData;
  accuracy?: (DepthCurves | null)[];
  sequences?: StepChart[];
  latency?: LatencyCharts[];
}

/** The second measurement of a point. */
interface AgainRow {
  verdict: string;
  ratio: number | null;
  low: number | null;
  high: number | null;
}

/** A graph folded into blocks: the block of each node, and the graph of the blocks. */
interface BlockShapes {
  of: number[];
  /** The node of each block that it is named and coloured by. */
  head: number[];
  /** The module of each block; empty where names do not show one. */
  titles: string[];
  graph: GraphShape;
}

/** The bound that a chart draws as a line. */
interface Bound {
  error: number;
  words: string;
  /** The bounded metric of layers: `slice_rms` or `relative_rms`. */
  metric: string;
}

/** Limits of a machine. */
interface Ceilings {
  bytes_per_s: number;
  /** Multiply unit of published peaks, or precision of measured ones -> multiply-accumulates per second. */
  macs_per_s: Record<string, number>;
}

/** One channel (the second dimension of NCHW) of a tensor, first sample, all items of its batch. Minimum, maximum, mean and rms are of the finite values, 0 if there are none. */
interface ChannelStatistics {
  channel: number;
  minimum: number;
  maximum: number;
  mean: number;
  rms: number;
  nonfinite: number;
  /** Elements at the largest or smallest value of their dtype, or of the activation's bounds (Clip, Sigmoid). */
  saturated: number;
  /** Root mean square of candidate minus reference, where both are finite; None without a reference. */
  difference_rms: number | null;
}

/** The layers of one compared profile; each list has an item for each layer. */
interface ComparedLayers {
  ms: (number | null)[];
  name: string[];
  type: string[];
  precision: string[];
  dims: string[];
  role: string[];
  tactic: string[];
  provider: string[];
  onnx: string[][];
}

/** Profiles of the same name in several reports. */
interface ComparedProfile {
  name: string;
  subjects: number[];
  decided_by: string;
  metrics: MetricData[];
  verdicts: VerdictRow[];
  reports: ComparedReport[];
  rows: MatchedRows;
  layer_verdicts: LayerVerdict[];
}

/** One compared profile. */
interface ComparedReport {
  label: string;
  /** Empty without samples. */
  latency: Record<string, number>;
  quartiles_ms: number[];
  /** Sorted, and at most some thousands. */
  samples: number[];
  sample_count: number;
  started_s: (number | null)[];
  session: string;
  layers: ComparedLayers;
  timeline: TimelineSpans | null;
}

/** All data of the page. */
interface ComparisonData {
  verdict: string;
  why: string;
  /** Ways to match layers, the surest first. */
  methods: string[];
  subjects: SubjectData[];
  profiles: ComparedProfile[];
  graphs: GraphShape[];
  /** For each report, profile after profile, the position of its graph. */
  graph_of: (number | null)[];
}

/** A constraint on a point. */
interface ConstraintRow {
  gate: string;
  passed: boolean;
  measured: string;
}

/** Points that differ only on the curve's axis. */
interface CurveLine {
  /** `threads 2`; empty for a single line. */
  label: string;
  /** Positions of its points, in the axis' order. */
  rows: number[];
  x: number[];
  y: (number | null)[];
  /** Position in the line where it saturates; None if it does not. */
  saturated: number | null;
}

/** Errors of two models layer by layer; a curve is one precision or one comparison. */
interface DepthCurves {
  curves: string[];
  node: string[];
  op_type: string[];
  tensor: string[];
  dims: string[];
  position: number[];
  /** `NOT_FINITE` for an error that is NaN or infinite. */
  error: ((number | null)[])[];
  /** 1 - cosine. */
  distance: ((number | null)[])[];
  nonfinite: number[][];
  ranges: DepthRanges | null;
  kept: number[];
  first: number | null;
  bound: Bound | null;
  precision: string;
  limits: FormatLimits | null;
}

/** Ranges of values, an item for each layer. */
interface DepthRanges {
  largest_abs: (number | null)[];
  smallest_abs: (number | null)[];
  rms: (number | null)[];
  beyond_share: (number | null)[];
  subnormal_share: (number | null)[];
  vanishing_share: (number | null)[];
  nonfinite: number[];
}

/** One changed value. */
interface DiffLine {
  /** `axis`, `input 0`, `shape`. */
  label: string;
  /** None if it did not exist. */
  before: string | null;
  after: string | null;
  is_consequence: boolean;
}

/** One added, removed or changed item, with shortened texts. */
interface DiffRow {
  part: "nodes" | "weights" | "inputs" | "outputs" | "tensors" | "functions" | "opsets" | "texts";
  sign: "+" | "-" | "~";
  name: string;
  /** Its previous name; empty if unchanged. */
  was: string;
  /** Operator, or type and shape, after the change. */
  kind: string;
  scope: string;
  /** Further description, such as the inputs and outputs of an added node. */
  detail: string;
  lines: DiffLine[];
  /** True if it was only renamed, or reads an inserted node. */
  is_aside: boolean;
}

/** One column: a number per point, or the position of its text. */
interface Dimension {
  key: string;
  label: string;
  kind: "axis" | "objective" | "metric";
  /** The first measurements; None for an axis without numbers. */
  numbers: (number | null)[] | null;
  /** The second ones, None for points that were not measured again; empty for an axis. */
  again: (number | null)[];
  unit: string;
  /** `minimize` or `maximize`; empty if there is no preference. */
  direction: string;
  log: boolean;
  /** Values of an axis as in the recipe. */
  texts: string[];
  /** Position of each point's value among them. */
  levels: number[];
  /** True if it is shown by default. */
  is_default: boolean;
}

/** All data of the page but the maps. */
interface DrawnActivations {
  model: string;
  reference: string;
  format: string;
  samples: SampleData[];
  tensors: TensorData[];
}

/** One quantity along one axis. */
interface DrawnCurve {
  axis: string;
  /** Position among the dimensions. */
  dimension: number;
  left_out: number;
  log: boolean;
  lines: CurveLine[];
}

/** The graphs of a model with all that is in them. */
interface DrawnModel {
  shown: number;
  scopes: ScopeData[];
  nodes: Columns<ModelNode>;
  tensors: Columns<ModelTensor>;
  held: HeldTensor[];
}

/** Passes of one process run; lists have an item for each pass that is drawn. */
interface DrawnPasses {
  /** Number of all passes. */
  count: number;
  /** Positions among all passes. */
  number: number[];
  ms: number[];
  /** Time since the end of the drawn pass before; empty if starts were not recorded. */
  gaps_ns: number[];
  started_s: number;
  /** Outliers are slower: Tukey's far fence, three interquartile ranges above the third quartile of all passes. */
  fence_ms: number;
  /** Moving median of all passes: position, ms. */
  drift: [number, number][];
}

/** A run of the chart. */
interface DrawnRun {
  id: string;
  /** Seconds since 1970. */
  started_s: number;
  commit: string;
}

/** The measurements of one metric; each list has an item for each point. */
interface DrawnSeries {
  metric: string;
  /** The kind of machine and the runtime. */
  about: string;
  unit: string;
  /** Positions among the runs. */
  run: number[];
  value: number[];
  /** Number of runs with this measurement. */
  shown_by: number[];
  doubt: string[];
  /** Median since the last step. */
  level: number | null;
  /** The smallest relative change that is a step. */
  least_change: number;
  /** The bound of a gate. */
  limit: number | null;
  /** The reason why nothing can be concluded; empty if something can. */
  remark: string;
  steps: DrawnStep[];
}

/** A step of a series. */
interface DrawnStep {
  /** Position of the first point after it. */
  place: number;
  before: number;
  after: number;
  /** `+5.1 %`. */
  change: string;
  /** The values, the interval and the reason, a line each. */
  detail: string;
  verdict: string;
  /** The note; empty if it is not accepted. */
  accepted: string;
}

/** All data of the page. */
interface DrawnSweep {
  id: string;
  name: string;
  points: PointRow[];
  dimensions: Dimension[];
  curves: DrawnCurve[];
}

/** Matched layers in one engine; texts are empty where it lacks the layers, or where they are not recorded. */
interface EngineAspects {
  type: string;
  precision: string;
  tactic: string;
  formats: string;
  shapes: string;
  /** Weights. */
  bytes: number;
}

/** One row of the script's table. */
interface EngineRow {
  /** `precision, tactic`, `only in A`, `same`, or `renamed`. */
  change: string;
  differs: boolean;
  name: string;
  /** The name in the earlier engine, if it is another one. */
  was: string;
  /** Empty for a layer of one engine. */
  method: string;
  confidence: number;
  before: EngineAspects;
  after: EngineAspects;
}

/** One finding. */
interface FindingRow {
  step: string;
  severity: string;
  check: string;
  node: string;
  op_type: string;
  message: string;
}

/** The magnitudes that a floating-point format can represent. */
interface FormatLimits {
  /** Smallest subnormal number. */
  subnormal: number;
  /** Smallest normal number. */
  normal: number;
  largest: number;
}

/** A graph that is laid out: one node per layer, then one per terminal, the edges, and their corners. */
interface GraphShape {
  width: number;
  height: number;
  /** Width and height of all nodes. */
  node: [number, number];
  x: number[];
  y: number[];
  /** Family of each layer, as a position in `FAMILIES`. */
  family: number[];
  inputs: string[];
  outputs: string[];
  source: number[];
  target: number[];
  back: number[];
  far: number[];
  /** Number of corners of each edge. */
  corners: number[];
  corner_x: number[];
  corner_y: number[];
  /** True if the profile does not record the layers' inputs, so that layers are joined in execution order. */
  by_order: boolean;
  /** The same graph folded into blocks, if that makes it easier to read. */
  blocks: BlockShapes | null;
  /** Nodes that contain a graph. */
  composite: number[];
  constant: number[];
}

/** A tensor stored in the model. */
interface HeldTensor {
  dtype: string;
  dims: string;
  elements: number;
  size_bytes: number;
  numbers: Numbers | null;
  /** Reason why there are no statistics. */
  unread: string;
  /** The first elements, as text. */
  first: string[];
  /** External file that contains the data; empty if it is in the model's own file. */
  where: string;
}

/** Counts of finite values in bins of equal width. Both models' histograms of a tensor have the same edges. */
interface Histogram {
  low: number;
  high: number;
  counts: number[];
}

/** Data of the script. */
interface HistoryData {
  /** The oldest first. */
  runs: DrawnRun[];
  series: DrawnSeries[];
  /** Position of the series that is shown at first. */
  first: number;
}

/** The timing pass of a profile. */
interface LatencyCharts {
  step: string;
  label: string;
  latency: Record<string, number>;
  quartiles_ms: number[];
  /** Sorted; every n-th of very many. */
  samples: number[];
  runs: DrawnPasses[];
  /** Number among all passes. */
  outliers: number;
  /** Median over the process runs of the change from the first to the last tenth; None for short runs. */
  drift: number | null;
}

/** Layers in order of execution; each list has an item for each layer. */
interface LayerColumns {
  name: string[];
  index: number[];
  type: string[];
  provider: string[];
  dims: string[];
  role: string[];
  tactic: string[];
  precision: string[];
  input_precision: string[];
  output_precision: string[];
  precision_basis: string[];
  channels: string[];
  /** Multiply units; all are empty if none is known. */
  unit: string[];
  /** Precisions that were asked for. */
  asked: string[];
  depth: number[];
  stream: (number | null)[];
  macs: (number | null)[];
  read_bytes: number[];
  written_bytes: number[];
  weight_bytes: number[];
  /** Positions among the tensors of the page. */
  inputs: number[][];
  outputs: number[][];
  onnx_nodes: string[][];
  median_ns: number[];
  /** Median less minimum. */
  below_ns: number[];
  /** Maximum less median. */
  above_ns: number[];
}

/** One row of one compared profile against the base. It is advisory: gates do not use it. */
interface LayerVerdict {
  row: number;
  candidate: number;
  verdict: "improved" | "regressed" | "unchanged" | "inconclusive" | "incomparable";
  ratio: number;
  /** p-value of Welch's t-test on the logarithms of the runs' medians; None with fewer than two runs per side. */
  p_value: number | null;
  /** After Benjamini and Hochberg, over all rows of this candidate. */
  q_value: number | null;
}

/** The layers of a profile, or of an engine without times. */
interface LayersData {
  step: string;
  label: string;
  columns: LayerColumns;
  /** Positions of layers that did not get the precision that was asked for. */
  missed: number[];
  is_timed: boolean;
  sum_ms: number;
  pass_ms: number;
  timeline: TimelineSpans | null;
  roofs: Ceilings | null;
  only_compute: boolean;
}

/** A map of a tensor: the place of its codes, and the values that they represent. */
interface MapData {
  sample: number;
  side: string;
  chunk: number;
  over: number;
  channels: number;
  numbers: number[];
  total: number;
  height: number;
  width: number;
  full: [number, number];
  scale: number;
  low: number;
  high: number;
  array: string;
}

/** Matched layers: a list for each profile, with an item for each row. */
interface MatchedRows {
  /** Positions of layers. */
  layers: number[][][];
  methods: number[][];
  confidences: ((number | null)[])[];
}

/** A metric of all compared profiles. */
interface MetricData {
  metric: string;
  key: string;
  unit: string;
  better: string;
  in_rounds: boolean;
  values: (number | null)[];
  runs: ((number | null)[])[];
}

/** An attribute of a node. */
interface ModelAttribute {
  name: string;
  type: string;
  /** Its value; the beginning of a long one. */
  text: string;
  /** True if the model omits the attribute and this is the operator's default. */
  is_default: boolean;
  /** Position in `ModelDocument.held`, if the value is a tensor. */
  held: number;
}

/** A node of a graph. */
interface ModelNode {
  name: string;
  /** `Conv`, or `domain::Name`. */
  operator: string;
  family: "convolution" | "matmul" | "activation" | "normalization" | "elementwise" | "shape" | "reduce" | "control" | "quantization" | "other";
  kind: "operator" | "composite" | "input" | "output" | "constant";
  /** The graph that contains it. */
  scope: number;
  /** Its main attributes in a few words: `3x3, stride 2`. */
  details: string;
  inputs: number[];
  outputs: number[];
  /** Tensors of enclosing graphs that its bodies read. */
  outside: number[];
  attributes: ModelAttribute[];
  /** Graphs that it contains. */
  bodies: number[];
  /** Requested precision. */
  precision: string;
  metadata: [string, string][];
  doc: string;
}

/** A value of a graph. */
interface ModelTensor {
  name: string;
  dtype: string;
  dims: string;
  /** Its dimensions, long names shortened. */
  label: string;
  kind: "computed" | "input" | "initializer" | "constant";
  /** Position in `ModelDocument.held`. */
  held: number;
}

/** Statistics of all elements of a tensor. NaN and infinities are only counted. */
interface Numbers {
  /** None if no element is finite, as are the three below. */
  minimum: number | number | null;
  maximum: number | number | null;
  /** None also if the sum exceeds the range of a double. */
  mean: number | null;
  /** Population standard deviation. */
  std: number | null;
  nans: number;
  infinities: number;
  zeros: number;
  /** Counts of the finite elements in equal parts from minimum to maximum; one part if these are equal, none if there is no range. */
  histogram: number[];
}

/** One point. */
interface PointRow {
  number: number;
  outcome: string;
  /** `best`, `tie` or `front`; empty for other points. */
  mark: string;
  reason: string;
  failed_step: string;
  /** Address of its own report. */
  report: string;
  /** Its settings as lines of a recipe. */
  lines: string;
  rank: number | null;
  wall_s: number;
  steps: PointStepRow[];
  constraints: ConstraintRow[];
  again: AgainRow | null;
}

/** A step of a point. */
interface PointStepRow {
  name: string;
  outcome: string;
  reason: string;
}

/** Data of the script, with an item for each search. */
interface PrecisionData {
  searches: SearchTrials[];
  depths: (DepthCurves | null)[];
}

/** Layers, which several panels show, and the data of each panel's own script. */
interface ReportData {
  /** Those of profiles, then those of engines. */
  layers: LayersData[];
  graphs: GraphShape[];
  /** For each item of `layers` its position among the graphs. */
  graph_of: (number | null)[];
  tensors: TensorRow[];
  panels: Panels;
}

/** A sample that was run. */
interface SampleData {
  label: string;
  /** Name, and where its values come from. */
  inputs: [string, string][];
  picture: number;
}

/** A graph of a model: the main one, a body or a local function. */
interface ScopeData {
  address: string;
  parent: number;
  first: number;
  terminals: number[];
  doc: string;
  graph: GraphShape;
}

/** The trials of a search; lists have an item for each trial. */
interface SearchTrials {
  step: string;
  metric: string;
  /** A higher metric is better. */
  higher: boolean;
  bound: number | null;
  number: number[];
  phase: string[];
  what: string[];
  /** Number of kept nodes. */
  kept: number[];
  /** First and last position of each range of kept nodes; None if there are too many. */
  ranges: (number[] | null)[];
  passed: boolean[];
  wall_s: number[];
  note: string[];
  metrics: Record<string, (number | null)[]>;
  /** The metrics that are fractions. */
  in_percent: string[];
}

/** The chart of a comparison over sequences. */
interface StepChart {
  /** Steps of each point. */
  share: number;
  steps: number;
  /** Number of steps up to the end of each sequence but the last. */
  ends: number[];
  labels: string[];
  lines: StepLine[];
}

/** The errors of one output at the steps of sequences. */
interface StepLine {
  output: string;
  metric: string;
  /** The largest error of as many steps as `share`; None where none could be compared. */
  errors: (number | null)[];
  bound: number | null;
  /** The first step beyond a bound, from 0. */
  first: number | null;
  /** Steps, from 0, where the two models decide differently. */
  flipped: number[];
}

/** A report that takes part in a comparison. */
interface SubjectData {
  letter: string;
  series: number;
  label: string;
}

/** A captured tensor. */
interface TensorData {
  name: string;
  node: string;
  op: string;
  position: number;
  dtype: string;
  reference_dtype: string;
  shape: string;
  layout: string;
  range: TensorRange;
  reference_range: TensorRange | null;
  histogram: Histogram | null;
  reference_histogram: Histogram | null;
  saturated: number;
  reference_saturated: number;
  channels: Columns<ChannelStatistics>;
  divergence: TensorDistance | null;
  maps: MapData[];
}

/** Distance of a tensor from the reference's. */
interface TensorDistance {
  metrics: Record<string, number>;
  nonfinite: number;
}

/** The values of one tensor over all samples. Shares are fractions, 0 to 1, of all its elements. */
interface TensorRange {
  tensor: string;
  elements: number;
  /** Smallest finite value; minimum, maximum and rms are 0 if nothing is finite. */
  minimum: number;
  maximum: number;
  /** Root of the mean square of the finite values. */
  rms: number;
  /** Magnitude of the finite value other than 0 that is nearest to 0; 0 if all are 0. */
  smallest_abs: number;
  nan_count: number;
  inf_count: number;
  /** Finite values beyond the format's largest (65504 for fp16). */
  beyond_share: number;
  /** Values other than 0 below the format's smallest normal number, where it has fewer bits. */
  subnormal_share: number;
  /** Values other than 0 that the format rounds to 0. */
  vanishing_share: number;
}

/** A tensor of a page. */
interface TensorRow {
  name: string;
  dtype: string;
  dims: string;
  format: string;
}

/** The spans of one pass; lists have an item for each span. */
interface TimelineSpans {
  basis: string;
  lanes: string[];
  lane: number[];
  depth: number[];
  kind: ("layer" | "overhead" | "transfer" | "pass")[];
  /** Time since the end of the span before: 0 for adjacent spans. */
  gap_ns: number[];
  duration_ns: number[];
  layer: (number | null)[];
  /** Empty for a span with the name of its layer. */
  name: string[];
}

/** The verdict on a metric of two profiles. */
interface VerdictRow {
  /** Position among the metrics; -1 for another one. */
  metric: number;
  base: number;
  candidate: number;
  apart: string;
  ratio: number | null;
  low: number | null;
  high: number | null;
  threshold: number | null;
  verdict: string;
  why: string;
}
