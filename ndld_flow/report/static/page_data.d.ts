// The data of each page, as Python's dataclasses declare them.
// Do not edit: `python -m tests.support.page_data_types` writes this file.

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
  change: string;
  differs: boolean;
  name: string;
  was: string;
  /** Empty for a layer of one engine. */
  method: string;
  confidence: number;
  before: EngineAspects;
  after: EngineAspects;
}

/** Data of the script. */
interface HistoryData {
  /** The oldest first. */
  runs: DrawnRun[];
  series: DrawnSeries[];
  /** Position of the series that is shown at first. */
  first: number;
}

/** A position in the table `texts`. */
type TextPlace = number;

/** The difference from the item before, the first one from 0: most are small, and pack well. */
type Steps = number;

type OptionalNumber = number | null;

/** A number; a text where it is not finite. */
type NumberText = number | string | null;

/** A list for each row: the lengths of all, and the items of all one after the other. */
interface RaggedColumn {
  counts: number[];
  places: Steps[];
}

/** Tensors, each once. */
interface TensorColumns {
  name: Steps[];
  dtype: TextPlace[];
  dims: TextPlace[];
  format?: TextPlace[];
}

/** Layers in order of execution. A column in which all values are empty is left out, except the names. */
interface LayerColumns {
  name: Steps[];
  index?: Steps[];
  type?: TextPlace[];
  provider?: TextPlace[];
  dims?: TextPlace[];
  role?: TextPlace[];
  tactic?: TextPlace[];
  precision?: TextPlace[];
  input_precision?: TextPlace[];
  output_precision?: TextPlace[];
  precision_basis?: TextPlace[];
  channels?: TextPlace[];
  unit?: TextPlace[];
  asked?: TextPlace[];
  depth?: number[];
  stream?: (number | null)[];
  macs?: (number | null)[];
  read_bytes?: number[];
  written_bytes?: number[];
  weight_bytes?: number[];
  inputs: RaggedColumn;
  outputs: RaggedColumn;
  onnx_nodes: RaggedColumn;
  median_ns?: number[];
  below_ns?: number[];
  above_ns?: number[];
}

/** The spans of one pass. */
interface TimelinePayload {
  basis: string;
  lanes: TextPlace[];
  lane: number[];
  depth: number[];
  kind: number[];
  gap_ns: number[];
  duration_ns: number[];
  layer: (number | null)[];
  name: TextPlace[];
}

/** Limits of a machine. */
interface RoofsPayload {
  bytes_per_s: number;
  /** Multiply unit of published peaks, or precision of measured ones -> multiply-accumulates per second. */
  ceilings: Record<string, number>;
}

/** The layers of a profile, or of an engine without times. */
interface LayersPayload {
  step: string;
  label: string;
  columns: LayerColumns;
  missed: number[];
  sum_ms?: number;
  pass_ms?: number;
  timeline?: TimelinePayload | null;
  roofs?: RoofsPayload | null;
  only_compute?: boolean;
}

/** The timing pass of a profile. */
interface ProfilePayload {
  step: string;
  label: string;
  runs: number[][];
  started_s: number[];
  gaps_ns: number[][];
  latency: Record<string, number>;
  quartiles_ms: number[];
}

/** Findings of the lint steps. */
interface FindingsPayload {
  severity: TextPlace[];
  check: TextPlace[];
  node: TextPlace[];
  op_type: TextPlace[];
  message: TextPlace[];
  step: TextPlace[];
}

/** The errors of one output at the steps of sequences. */
interface StepLinePayload {
  output: TextPlace;
  metric: TextPlace;
  /** The largest error of as many steps as `share`; null where none could be compared. */
  errors: (number | null)[];
  bound: number | null;
  /** The first step beyond a bound, from 0. */
  first: number | null;
  /** Steps, from 0, where the two models decide differently. */
  flipped: number[];
}

/** A comparison of two models over sequences. */
interface SequencePayload {
  /** Steps of each point. */
  share: number;
  steps: number;
  /** Number of steps up to the end of each sequence but the last. */
  ends: number[];
  labels: TextPlace[];
  lines: StepLinePayload[];
}

/** Differences between two models. */
interface DiffPayload {
  part: TextPlace[];
  sign: TextPlace[];
  name: TextPlace[];
  was: TextPlace[];
  kind: TextPlace[];
  scope: TextPlace[];
  detail: TextPlace[];
  /** Label, before, after (-1 for a value that is absent), 1 for a consequence of another difference. */
  lines: [TextPlace, number, number, number][][];
  aside: number[];
}

/** A graph that is laid out: nodes, edges and the corners of edges. */
interface GraphPayload {
  width: number;
  height: number;
  node: [number, number];
  x: Steps[];
  y: Steps[];
  family: number[];
  inputs: string[];
  outputs: string[];
  source: Steps[];
  target: Steps[];
  back: number[];
  far: number[];
  corners: number[];
  corner_x: Steps[];
  corner_y: Steps[];
  by_order: boolean;
  composite?: number[];
  constant?: number[];
  blocks?: BlocksPayload;
}

/** A graph folded into blocks: the block of each node, and the graph of the blocks. */
interface BlocksPayload {
  of: Steps[];
  head: Steps[];
  titles: string[];
  graph: GraphPayload;
}

/** The trials of a precision search. */
interface SearchPayload {
  step: string;
  metric: string;
  higher: boolean;
  bound: OptionalNumber;
  number: number[];
  phase: TextPlace[];
  what: TextPlace[];
  kept: number[];
  ranges: (number[] | null)[];
  passed: number[];
  wall_s: number[];
  note: TextPlace[];
  metrics: Record<string, NumberText[]>;
}

/** An error bound. */
interface DepthBound {
  error: number;
  words: string;
}

/** Ranges of values, one for each layer. */
interface DepthRanges {
  largest_abs: OptionalNumber[];
  smallest_abs: OptionalNumber[];
  rms: OptionalNumber[];
  beyond_share: OptionalNumber[];
  subnormal_share: OptionalNumber[];
  vanishing_share: OptionalNumber[];
  nonfinite: number[];
}

/** Errors of two models layer by layer; a curve is one precision or one comparison. */
interface DepthPayload {
  curves: string[];
  node: TextPlace[];
  op_type: TextPlace[];
  tensor: TextPlace[];
  dims: TextPlace[];
  position: Steps[];
  error: OptionalNumber[][];
  distance: OptionalNumber[][];
  nonfinite: number[][] | null;
  ranges: DepthRanges | null;
  kept: number[];
  first: number | null;
  bound: DepthBound | null;
  precision: string;
  /** The smallest subnormal, the smallest normal and the largest number of the precision. */
  limits: [number, number, number] | null;
}

/** All data of the report of a run or a profile. */
interface ReportPayload {
  profiles: ProfilePayload[];
  layers: LayersPayload[];
  /** Data of the panels that have a script of their own, by the panel's name. */
  panels: Record<string, any>;
  diffs: (DiffPayload | null)[];
  graphs: GraphPayload[];
  graph_of: (number | null)[];
  searches: SearchPayload[];
  depths: (DepthPayload | null)[];
  tensors: TensorColumns;
  texts: string[];
}

/** All data of the page of a diff. */
interface DiffPagePayload {
  diffs: DiffPayload[];
  texts: string[];
}

/** A report that takes part in a comparison. */
interface SubjectPayload {
  letter: string;
  series: number;
  label: string;
}

/** A metric of all compared profiles. */
interface MetricPayload {
  metric: string;
  key: string;
  unit: string;
  better: string;
  values: OptionalNumber[];
  runs: OptionalNumber[][];
}

/** Verdicts on metrics; `metric` is a position among the metrics. */
interface VerdictColumns {
  metric: number[];
  base: number[];
  candidate: number[];
  apart: TextPlace[];
  ratio: OptionalNumber[];
  low: OptionalNumber[];
  high: OptionalNumber[];
  threshold: OptionalNumber[];
  floor: OptionalNumber[];
  verdict: TextPlace[];
  why: TextPlace[];
}

/** The layers of one compared profile. */
interface ComparedLayers {
  ms: OptionalNumber[];
  name: TextPlace[];
  type: TextPlace[];
  precision: TextPlace[];
  dims: TextPlace[];
  role: TextPlace[];
  tactic: TextPlace[];
  provider: TextPlace[];
  onnx: TextPlace[][];
}

/** One compared profile. */
interface ComparedReport {
  label: string;
  latency: Record<string, OptionalNumber>;
  quartiles_ms: OptionalNumber[];
  samples: OptionalNumber[];
  sample_count: number;
  started_s: OptionalNumber[];
  sitting: string;
  layers: ComparedLayers;
  timeline: TimelinePayload | null;
}

/** Matched layers: for each profile a column of one position or several, of methods and of confidences. */
interface RowColumns {
  layers: ((number | number[])[])[];
  methods: number[][];
  confidences: OptionalNumber[][];
}

/** Verdicts on rows of matched layers. */
interface LayerVerdictColumns {
  row: number[];
  candidate: number[];
  verdict: TextPlace[];
  p_value: OptionalNumber[];
  q_value: OptionalNumber[];
}

/** Profiles of the same name in several reports. */
interface ComparedProfile {
  name: string;
  subjects: number[];
  decided_by: string;
  metrics: MetricPayload[];
  verdicts: VerdictColumns;
  reports: ComparedReport[];
  rows: RowColumns;
  layer_verdicts: LayerVerdictColumns;
}

/** All data of the page of a comparison. */
interface ComparisonPayload {
  verdict: string;
  why: string;
  methods: string[];
  subjects: SubjectPayload[];
  profiles: ComparedProfile[];
  graphs: GraphPayload[];
  graph_of: (number | null)[];
  texts: string[];
}

/** A point that was measured again. */
interface AgainPayload {
  standing: string;
  ratio: OptionalNumber[];
}

/** A column over all points of a sweep; `texts` and `levels` belong to axes. */
interface DimensionPayload {
  key: string;
  label: string;
  kind: string;
  unit: string;
  direction: string;
  log: boolean;
  is_default: boolean;
  numbers: OptionalNumber[] | null;
  again: OptionalNumber[] | null;
  texts?: TextPlace[];
  levels?: number[];
}

/** Points that differ on the axis of a curve only. */
interface CurveLinePayload {
  label: string;
  rows: number[];
  x: number[];
  saturated: number | null;
}

/** One quantity along one axis. */
interface CurvePayload {
  axis: string;
  dimension: number;
  left_out: number;
  log: boolean;
  lines: CurveLinePayload[];
}

/** All data of the page of a sweep; a row is a point. */
interface SweepPayload {
  id: string;
  name: string;
  objectives: number;
  number: number[];
  outcome: TextPlace[];
  mark: TextPlace[];
  reason: TextPlace[];
  failed_step: TextPlace[];
  report: TextPlace[];
  lines: TextPlace[];
  rank: (number | null)[];
  sitting: (number | null)[];
  wall_s: number[];
  /** Name, outcome and reason of each step, one after the other. */
  steps: TextPlace[][];
  /** Gate, 1 if it holds, measured value. */
  constraints: [TextPlace, number, TextPlace][][];
  again: (AgainPayload | null)[];
  dimensions: DimensionPayload[];
  curves: CurvePayload[];
  texts: string[];
}

/** A sample that was run; `inputs` are pairs of a name and where its values come from. */
interface SamplePayload {
  label: string;
  inputs: [string, string][];
  picture: number;
}

/** The range of a tensor's values. */
interface RangePayload {
  elements: number;
  low: NumberText;
  high: NumberText;
  rms: NumberText;
  smallest: NumberText;
  nan: number;
  inf: number;
  beyond: NumberText;
  subnormal: NumberText;
  vanishing: NumberText;
}

/** Counts of values in equal parts between two ends. */
interface HistogramPayload {
  low: NumberText;
  high: NumberText;
  counts: number[];
}

/** Statistics of a tensor's channels. */
interface ChannelColumns {
  number: number[];
  minimum: NumberText[];
  maximum: NumberText[];
  mean: NumberText[];
  rms: NumberText[];
  nonfinite: number[];
  saturated: number[];
  difference: NumberText[];
}

/** Distance of a tensor from the reference's. */
interface TensorDivergence {
  metrics: Record<string, NumberText>;
  nonfinite: number;
}

/** A map of a tensor: the place of its codes, and the values that they represent. */
interface MapPayload {
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

/** A captured tensor. */
interface TensorPayload {
  name: string;
  node: string;
  op: string;
  position: number;
  dtype: string;
  reference_dtype: string;
  shape: string;
  layout: string;
  range: RangePayload;
  reference_range: RangePayload | null;
  histogram: HistogramPayload | null;
  reference_histogram: HistogramPayload | null;
  saturated: number;
  reference_saturated: number;
  channel_count: number;
  channels_by: string;
  channels: ChannelColumns;
  divergence: TensorDivergence | null;
  maps: MapPayload[];
}

/** All data of the page of activations. */
interface ActivationsPayload {
  model: string;
  reference: string;
  format: string;
  samples: SamplePayload[];
  tensors: TensorPayload[];
}

/** The nodes of a model; `inputs`, `outputs` and `outside` are positions of tensors, `bodies` of scopes. */
interface ModelNodes {
  name: TextPlace[];
  operator: TextPlace[];
  details: TextPlace[];
  precision: TextPlace[];
  doc: TextPlace[];
  inputs: number[][];
  outputs: number[][];
  outside: number[][];
  bodies: number[][];
  /** Name, type, value, 1 for a default, position of a held tensor: one attribute after the other. */
  attributes: number[][];
  metadata: TextPlace[][];
}

/** The tensors of a model. */
interface ModelTensors {
  name: TextPlace[];
  dtype: TextPlace[];
  dims: TextPlace[];
  label: TextPlace[];
  kind: number[];
  held: Steps[];
}

/** A tensor that the model's file holds. Either its numbers are there, or why they are not. */
interface HeldPayload {
  dtype: string;
  dims: string;
  elements: number;
  bytes: number;
  first: string[];
  where: string;
  unread?: string;
  range?: OptionalNumber[];
  counts?: number[];
  histogram?: number[];
}

/** A graph of a model: the main one, a body or a local function. */
interface ScopePayload {
  address: string;
  parent: number;
  first: number;
  terminals: number[];
  doc: string;
  graph: GraphPayload;
}

/** All data of the page of a model. */
interface ModelPayload {
  shown: number;
  scopes: ScopePayload[];
  nodes: ModelNodes;
  tensors: ModelTensors;
  held: HeldPayload[];
  texts: string[];
}
