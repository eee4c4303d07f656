#include "common/spec/toggles.h"

#include <algorithm>

namespace nsa::spec {

namespace {

// Reasons that several rows share.
constexpr std::string_view kOneKernel =
    "chose between its many kernels; now attention.kernels chooses, and each rank reports the "
    "kernel of each branch";
constexpr std::string_view kNoFlash2 =
    "there is no FlashAttention-2 switch; attention.kernels chooses, "
    "and each rank reports the kernel";
constexpr std::string_view kNoTriton = "there are no Triton kernels";
constexpr std::string_view kRanges =
    "blocks are selected on the device; there are no ranges to merge on the host";
constexpr std::string_view kAlwaysTested =
    "checked by the tests against a float64 oracle instead of in production";
constexpr std::string_view kNoDebug =
    "its debug output synchronised with the device; events, metrics and evidence replace it";
constexpr std::string_view kNoFsdp =
    "125M parameters fit on every GPU; parallel.shard_update divides only the update";
constexpr std::string_view kNoScaler = "it scaled FP16 losses; FP16 is refused, BF16 needs none";
constexpr std::string_view kLoader =
    "text is tokenised once by `nsactl data prepare` and read from memory-mapped shards";
constexpr std::string_view kLimits = "limits are learned from the run; floors and ceilings: [hang]";
constexpr std::string_view kDead = "documented there, but no code read it";
constexpr std::string_view kToy = "belonged to its toy trainer; every run now has a run file";
constexpr std::string_view kTestOnly = "selected tests; ours all run, or say why one is skipped";
constexpr std::string_view kNotSelfMade = "set by nsad for each rank";
constexpr std::string_view kRendezvous =
    "nsad chooses it: a unix socket on one node, a free port on several";

} // namespace

// clang-format off
const std::vector<PredecessorFlag>& predecessor_flags() {
  static const std::vector<PredecessorFlag> kFlags = {
    // Routing
    {"NSA_PREFILL_BATCHED", "toggles.attention.kernels", "training is always batched; its sequential prefill leaked the future"},
    {"NSA_FORCE_SEL_MASK", "toggles.attention.kernels", kOneKernel},
    {"NSA_USE_SEL_PACK", "toggles.attention.kernels", kOneKernel},
    {"NSA_USE_SEL_MASK", "toggles.attention.kernels", kOneKernel},
    {"NSA_USE_SEL_VARLEN", "toggles.attention.kernels", kOneKernel},
    {"NSA_USE_TRITON_SEL", "toggles.attention.kernels", kNoTriton},
    {"NSA_SEL_CUDA", "toggles.attention.kernels", kOneKernel},
    {"NSA_USE_CMP_MASK", "toggles.attention.kernels", "its default returned the first compressed value everywhere; the branch is attention here"},
    {"NSA_USE_WIN_MASK", "toggles.attention.kernels", kOneKernel},
    {"NSA_FORCE_PARITY", "toggles.attention.kernels", "a slow oracle to compare with is attention.kernels = \"reference\""},
    {"NSA_PREFILL_TILE", "", "processed a prompt token by token; training is always batched"},
    {"NSA_ROPE_SCALE", "model.rope_base", "positions are not scaled; the base is a key"},
    {"NSA_ENV_STATIC", "", "cached and never used there; toggles are fixed for an attempt here"},
    // FlashAttention-2
    {"NSA_USE_FA2", "toggles.attention.kernels", kNoFlash2},
    {"NSA_USE_FA2_WIN", "toggles.attention.kernels", kNoFlash2},
    {"NSA_USE_FA2_CMP", "toggles.attention.kernels", kNoFlash2},
    {"NSA_FA2_MIN_LEN_WIN", "", kNoFlash2},
    {"NSA_FA2_MIN_LEN_CMP", "", kNoFlash2},
    {"NSA_ALLOW_SLIDING_FA2", "", kNoFlash2},
    {"NSA_FA2_FORCE", "", kNoFlash2},
    {"NSA_FA2_FORCE_VARLEN", "", kNoFlash2},
    {"NSA_FA2_FORCE_DENSE", "", kNoFlash2},
    {"NSA_WIN_FORCE_DENSE", "", kNoFlash2},
    {"NSA_FA2_PREF_FP16", "", kNoFlash2},
    {"NSA_FA2_ALLOW_FP32", "", kNoFlash2},
    {"NSA_FA2_ALLOW_D_GT_128", "", kNoFlash2},
    {"NSA_FA2_ALLOW_LARGE_BATCH", "", kNoFlash2},
    {"NSA_FA2_AUDIT", "", "which kernel ran is always reported"},
    {"NSA_ENABLE_FA2", "", kDead},
    // Selection
    {"NSA_SEL_RANGES_V2", "", kRanges},
    {"NSA_SEL_RANGES_V2_MIN_S", "", kDead},
    {"NSA_P_CMP_MIXED", "", "scores and softmax compute in FP32"},
    {"NSA_P_SLC_MIXED", "", kDead},
    {"NSA_P_GRP_FP32", "", kDead},
    {"NSA_VALIDATE_SELECTION_DETERMINISM", "train.deterministic", "ties always go to the lower block; tests check that"},
    {"NSA_VERIFY_EQ9_MAPPING", "", kAlwaysTested},
    {"NSA_SEL_VARLEN_V2", "", kRanges},
    {"NSA_SEL_VARLEN_MIN_L", "", kRanges},
    {"NSA_SEL_VARLEN_FORCE_PARITY", "", kAlwaysTested},
    {"NSA_TRAIN_SAFE_PACK", "", kRanges},
    {"NSA_SEL_PACK_RESERVE_N", "", "work space is planned, not reserved by hand"},
    {"NSA_SEL_PACK_RESERVE_L", "", "work space is planned, not reserved by hand"},
    {"NSA_VARLEN_RESERVE_N", "", "work space is planned, not reserved by hand"},
    {"NSA_VARLEN_RESERVE_K", "", "work space is planned, not reserved by hand"},
    // Gate and debugging
    {"NSA_FORCE_BRANCH", "nsa.branches", "an ablation names the branches that are on"},
    {"NSA_FORCE_UNIFORM_GATE", "", "a debug aid; a large nsa.gate_temperature comes close"},
    {"NSA_STOPGRAD_GATES", "", "the gate always learns"},
    {"NSA_GATE_COMPILE", "", "nothing is compiled at run time"},
    {"NSA_GATE_TAU", "nsa.gate_temperature", "documented there, but no code read it; now a key"},
    {"NSA_STRICT_ASSERTS", "precision.check_dtypes", "its asserts synchronised at every call; types are checked by key, causality by tests"},
    {"NSA_DEBUG_COMPARE", "", kAlwaysTested},
    {"NSA_DEBUG_LOG", "", kNoDebug},
    {"NSA_LOG_LIMIT", "", kNoDebug},
    {"NSA_DEBUG_TIMING", "", "the time of every phase is on the progress page and in /metrics"},
    {"NSA_DEBUG_SHAPES", "precision.check_dtypes", "modules check the types of their inputs and outputs"},
    {"NSA_NVTX", "", "ranges are NVTX ranges while nsactl profile records a GPU"},
    {"NSA_SDPA_AUDIT", "toggles.attention.kernels", "which kernel ran is always reported"},
    // Triton and its CUDA stub
    {"NSA_TRITON_SEL_FORCE", "", kNoTriton},
    {"NSA_SEL_TRITON_MIN_L", "", kNoTriton},
    {"NSA_SEL_TRITON_ALLOW_GRAD", "", kNoTriton},
    {"NSA_SEL_TRITON_GROUP", "", kNoTriton},
    {"NSA_SEL_TRITON_REQUIRE_ALIGN", "", kNoTriton},
    {"NSA_SEL_TRITON_FORCE_PATH", "", kNoTriton},
    {"NSA_SEL_TRITON_PACK_CACHE_MAX_ENTRIES", "", kNoTriton},
    {"NSA_SEL_TRITON_PACK_CACHE_MAX_MB", "", kNoTriton},
    {"NSA_SEL_TRITON_BLOCK_L", "", kNoTriton},
    {"NSA_SEL_TRITON_BLOCK_D", "", kNoTriton},
    {"NSA_SEL_TRITON_BLOCK_DV", "", kNoTriton},
    {"NSA_SEL_TRITON_BLOCK_H", "", kNoTriton},
    {"NSA_SEL_CUDA_BUILD", "", "GPU code is built with the programs, not at run time"},
    {"NSA_DEBUG_BUILD", "", "GPU code is built with the programs, not at run time"},
    // Trainer
    {"CONFIG", "", "there is no default configuration: `nsactl submit` takes the run file (its toy default cost a day)"},
    {"NSA_SEQ_LEN", "train.sequence_length", "overrides are typed and recorded: --set"},
    {"NSA_BATCH_SIZE", "train.micro_batch", "sequences a rank and forward pass; train.global_batch checks the product"},
    {"NSA_ACCUM", "train.accumulate", "overrides are typed and recorded: --set"},
    {"NSA_LR", "train.learning_rate", "overrides are typed and recorded: --set"},
    {"NSA_NO_GC", "train.activation_recompute", "false is the default; its version recomputed the wrong layer"},
    {"NSA_GC_RANGE", "train.activation_recompute", "for all blocks or none"},
    {"NSA_GC_REENTRANT", "train.activation_recompute", "there is only one form of recomputation"},
    {"NSA_OPT_FUSED", "", "the optimizer always works on flat buffers"},
    {"NSA_SDPA_FLASH_ONLY", "toggles.attention.kernels", kOneKernel},
    {"NSA_SDPA_NO_FLASH", "toggles.attention.kernels", kOneKernel},
    {"NSA_SCALER_INIT_SCALE", "", kNoScaler},
    {"NSA_SCALER_GROWTH_INTERVAL", "", kNoScaler},
    {"NSA_SCALER_GROWTH_FACTOR", "", kNoScaler},
    {"NSA_SCALER_BACKOFF_FACTOR", "", kNoScaler},
    // Data parallelism
    {"TORCH_BACKEND", "parallel.device", "NCCL between GPUs, our own backend between CPU ranks"},
    {"NSA_PG_TIMEOUT_MIN", "parallel.collective_timeout_seconds", "in seconds, and above the hang limits"},
    {"NSA_DDP_COMPRESS", "parallel.compress", "its default was bf16; here it is off, gradients are reduced in FP32"},
    {"NSA_DDP_BUCKET_MB", "parallel.bucket_mib", "in MiB"},
    {"NSA_DDP_STATIC_GRAPH", "parallel.static_graph", "a promise that is checked"},
    {"NSA_DDP_FIND_UNUSED", "parallel.find_unused", "needed for nothing here; without it a parameter without a gradient is an error"},
    {"NSA_DDP_BROADCAST_BUFFERS", "", "the model has no buffers that ranks could disagree on"},
    {"NSA_DDP_GRAD_AS_BUCKET_VIEW", "", "gradients always live in their buckets"},
    {"NSA_DDP_DISABLE_GC", "train.activation_recompute", "recompute works on any number of ranks"},
    {"NSA_DDP_SAFE_GC_LAYERS", "train.activation_recompute", "recompute works on any number of ranks"},
    {"NSA_DDP_SAFE_MODE", "", "a bundle of toggles, most without effect; change one at a time"},
    // Logs
    {"NSA_TB_DISABLE", "metrics.tensorboard", "false switches it off"},
    {"NSA_DISABLE_CSV_LOGS", "metrics.jsonl", "metrics.jsonl replaces the CSV files"},
    {"NSA_DISABLE_AUX_STATS", "", "auxiliary statistics stay on the device and cost no synchronisation"},
    {"NSA_HEARTBEAT_EVERY", "", "the progress page is always current and costs no system call"},
    {"NSA_MEM_DUMP_EVERY", "", "memory is recorded at boot, after each stage of start-up and in steady state"},
    {"NSA_LOG_GRAD_NORM", "train.log_interval_steps", "the gradient norm is always recorded, before gradients are zeroed"},
    {"NSA_DEBUG_LOSS", "", kNoDebug},
    {"NSA_DETECT_ANOMALY", "train.non_finite", "a rule agreed by all ranks; its switch crashed"},
    {"NSA_TRACE_GRADS", "", "a parameter without a gradient is an error"},
    {"NSA_TRACE_MODULE_BWD", "", kNoDebug},
    {"NSA_TRACE_DDP_BUCKETS", "", kNoDebug},
    // Loader
    {"NSA_FWE_DOC_BATCH", "", kLoader},
    {"NSA_FWE_PREFETCH", "", kLoader},
    {"NSA_FWE_Q", "", kLoader},
    {"NSA_FWE_WARMUP_BATCHES", "", kLoader},
    {"NSA_FWE_WARMUP_TIMEOUT", "hang.first_step_seconds", kLoader},
    {"NSA_FWE_REPORT_DOCS", "", kLoader},
    // Fully sharded data parallelism
    {"NSA_FSDP_SHARDING", "", kNoFsdp},
    {"NSA_FSDP_FORWARD_PREFETCH", "", kNoFsdp},
    {"NSA_FSDP_BACKWARD_PREFETCH", "", kNoFsdp},
    {"NSA_FSDP_LIMIT_ALL_GATHERS", "", kNoFsdp},
    {"NSA_FSDP_USE_ORIG_PARAMS", "", kNoFsdp},
    {"NSA_FSDP_AUTO_WRAP", "", kNoFsdp},
    {"NSA_FSDP_RESHARD_AFTER_FWD", "", kNoFsdp},
    {"NSA_ALLOW_SINGLE_RANK", "parallel.ranks", "the number of ranks is what the run file says"},
    // Watchdog
    {"NSA_WATCH_HALT", "hang.action", "\"observe\" reports only; there are no sentinel files"},
    {"NSA_WATCH_INTERVAL_S", "", "progress pages are read several times a second"},
    {"NSA_WATCH_HEARTBEAT_STALL_S", "hang.ceiling_seconds", kLimits},
    {"NSA_WATCH_FLATLINE_N", "run.gates", "the preset \"progress\" wants the loss 1 % lower in 1,000 steps"},
    {"NSA_WATCH_GATE_COLLAPSE_N", "run.gates", "the preset \"health\" has it: largest_gate at most 0.9"},
    {"NSA_WATCH_GATE_ENTROPY_MIN", "run.gates", "the preset \"health\" has it: gate_entropy at least 0.5"},
    {"NSA_WATCH_GATE_MAX_THRESHOLD", "run.gates", "the preset \"health\" has it: largest_gate at most 0.9"},
    {"NSA_WATCH_LOSS_FLATLINE_N", "", kDead},
    {"NSA_WATCH_GRAD_ZERO_N", "", kDead},
    {"NSA_WATCH_FETCH_STALL_RATIO", "", kDead},
    // Others
    {"NSA_ALLOW_ADA", "", "guarded a GPU generation; GPU code is built for sm_90a and PTX compute_80"},
    {"NSA_DTYPE", "precision.mode", "and precision.compute"},
    {"NSA_TRAIN_BS", "train.micro_batch", kToy},
    {"NSA_TRAIN_CLIP", "train.gradient_clip", kToy},
    {"NSA_TRAIN_LR", "train.learning_rate", kToy},
    {"NSA_TRAIN_MAX_LEN", "train.sequence_length", kToy},
    {"NSA_TRAIN_SEED", "train.seed", kToy},
    {"NSA_TRAIN_STEPS", "train.steps", kToy},
    {"NSA_TRAIN_WARMUP", "train.warmup_steps", kToy},
    {"NSA_DEBUG_TRAIN", "", kToy},
    {"NSA_TEST_FA2", "", kTestOnly},
    {"NSA_TEST_MASKED", "", kTestOnly},
    {"NSA_TEST_SEL_MASK", "", kTestOnly},
    {"NSA_TEST_SEL_PACK", "", kTestOnly},
    {"NSA_TEST_TRAIN", "", kTestOnly},
    {"NSA_TEST_TRITON_SEL", "", kTestOnly},
    {"NSA_TEST_SEED", "", kTestOnly},
    {"NSA_INTEGRATION_TESTS", "", kTestOnly},
    {"NSA_REQUIRE_VARLEN_SEMANTIC", "", kTestOnly},
    {"NSA_PARITY_OK", "", kDead},
    {"NSA_TOKENIZER", "data.path", "documented there, but no code read it; the data set names its tokenizer"},
    {"NSA_MAX_SEQ_LEN", "train.sequence_length", kDead},
    {"NSA_PREFILL_BATCH_SIZE", "", kDead},
    {"NSA_TF32_MATMUL", "toggles.cuda.tf32_override", kDead},
    {"NSA_DATA_CACHE", "", kDead},
    {"NSA_DATALOADER_WORKERS", "", kDead},
    {"NSA_DATALOADER_PREFETCH", "", kDead},
    {"NSA_DATALOADER_PIN_MEMORY", "", kDead},
    {"NSA_CLIP_NORM", "train.gradient_clip", kDead},
    {"NSA_VAL_EVERY", "eval.interval_steps", kDead},
    // Other variables that its users set
    {"PYTORCH_CUDA_ALLOC_CONF", "toggles.allocator.configuration", "options of the allocator, under the present name of the variable"},
    {"NCCL_BLOCKING_WAIT", "toggles.nccl.blocking_wait", "for debugging only: a stuck collective is found by nsad, and its own time-out is parallel.collective_timeout_seconds"},
    {"TORCH_NCCL_BLOCKING_WAIT", "toggles.nccl.blocking_wait", "for debugging only: a stuck collective is found by nsad, and its own time-out is parallel.collective_timeout_seconds"},
    {"NCCL_ASYNC_ERROR_HANDLING", "", "always on: an error of a collective ends the rank, which nsad restarts"},
    {"TORCH_NCCL_ASYNC_ERROR_HANDLING", "", "always on: an error of a collective ends the rank, which nsad restarts"},
    {"TORCH_NCCL_TRACE_BUFFER_SIZE", "toggles.nccl.trace_buffer", "the variable is now TORCH_FR_BUFFER_SIZE"},
    {"TORCH_NCCL_DUMP_ON_TIMEOUT", "", "nsad takes the evidence, before any time-out"},
    {"NCCL_DEBUG", "toggles.nccl.debug", "recorded with the attempt"},
    {"NCCL_DEBUG_SUBSYS", "toggles.nccl.debug_subsystems", "recorded with the attempt"},
    {"NCCL_ALGO", "toggles.nccl.algorithm", "recorded with the attempt"},
    {"NCCL_PROTO", "toggles.nccl.protocol", "recorded with the attempt"},
    {"NCCL_P2P_DISABLE", "toggles.nccl.p2p_disable", "recorded with the attempt"},
    {"NCCL_IB_DISABLE", "toggles.nccl.ib_disable", "recorded with the attempt"},
    {"CUDA_LAUNCH_BLOCKING", "toggles.cuda.launch_blocking", "recorded with the attempt"},
    {"MASTER_ADDR", "", kRendezvous},
    {"MASTER_PORT", "", kRendezvous},
    {"RANK", "", kNotSelfMade},
    {"LOCAL_RANK", "", kNotSelfMade},
    {"WORLD_SIZE", "parallel.ranks", kNotSelfMade},
    {"CUDA_VISIBLE_DEVICES", "parallel.ranks", "nsad leases GPUs by UUID and sets it for each rank"},
    {"OMP_NUM_THREADS", "train.threads", kNotSelfMade},
    {"HF_TOKEN", "", "only nsactl data fetch needs it; training reads the data set on disk"},
    // Command line
    {"--dataset", "data.path", kLoader},
    {"--save", "", "checkpoints are in the run's own folder (there every run overwrote the same folder)"},
    {"--ddp", "parallel.ranks", "the number of ranks is a key"},
    {"--resume", "", "`nsactl resume RUN`: newest verified checkpoint, optimizer and data order included"},
    {"--loader-timeout", "hang.first_step_seconds", kLimits},
    {"--fwe-report-docs", "", kLoader},
    {"--synthetic-on-fail", "", "the data source never changes silently: missing data end the run"},
    {"--local-path", "data.path", kLoader},
    {"--steps", "train.steps", "--set train.steps=N"},
    {"--seq-len", "train.sequence_length", "--set train.sequence_length=N"},
    {"--batch-size", "train.micro_batch", "--set train.micro_batch=N"},
    {"--accum-batches", "train.accumulate", "--set train.accumulate=N"},
    {"--no-gc", "train.activation_recompute", "false is the default"},
    {"--config", "", "the run file is the argument of `nsactl submit`"},
    {"--precision", "precision.mode", "silently ignored there; now a key"},
    {"--override", "", "--set key=value, typed and recorded"},
    {"--resume-from", "", "`nsactl resume RUN`"},
    // Keys of its yaml files
    {"model.dim", "model.dimension", "renamed"},
    {"model.n_layers", "model.layers", "renamed"},
    {"model.n_heads", "model.heads", "renamed"},
    {"model.n_kv_groups", "model.kv_groups", "renamed"},
    {"model.d_k", "model.head_dimension", "d_k and d_v are one key"},
    {"model.d_v", "model.head_dimension", "d_k and d_v are one key"},
    {"nsa.l", "nsa.compression_block", "renamed"},
    {"nsa.d", "nsa.compression_stride", "renamed"},
    {"nsa.l_sel", "nsa.selection_block", "renamed"},
    {"nsa.n_sel", "nsa.selected_blocks", "renamed"},
    {"nsa.w", "nsa.window", "renamed"},
    {"nsa.phi", "nsa.compression", "\"avg\" is \"average\" here; its \"mlp\" never worked"},
    {"data.tokenizer", "data.path", "the data set knows its tokenizer"},
    {"runtime.device", "parallel.device", "moved"},
    {"runtime.precision", "precision.mode", "and precision.compute"},
    {"runtime.gradient_checkpointing", "train.activation_recompute", "renamed"},
    {"runtime.fa2_enabled", "toggles.attention.kernels", kNoFlash2},
    {"runtime.fa2_min_len_win", "", kNoFlash2},
    {"runtime.fa2_min_len_cmp", "", kNoFlash2},
    {"runtime.use_flash", "toggles.attention.kernels", "read by nothing there"},
    {"runtime.use_triton_sel", "", kNoTriton},
    {"runtime.sel_triton_min_L", "", kNoTriton},
    {"runtime.compile_cmp_win", "", "read by nothing there"},
    {"train.seq_len", "train.sequence_length", "renamed"},
    {"train.batch_size", "train.micro_batch", "its meaning changed between data sources; micro_batch is always a rank's"},
    {"train.lr", "train.learning_rate", "renamed"},
    {"train.lr_schedule", "train.schedule", "read by nothing there"},
    {"train.grad_clip", "train.gradient_clip", "renamed"},
    {"train.max_grad_norm", "train.gradient_clip", "read by nothing there"},
    {"train.accumulate_grad_batches", "train.accumulate", "renamed; a step is an update here, there a micro-batch"},
    {"train.log_every", "train.log_interval_steps", "renamed; a step is an update here, there a micro-batch"},
    {"train.eval_every", "eval.interval_steps", "renamed; a step is an update here, there a micro-batch"},
    {"train.save_every", "checkpoint.interval_steps", "renamed; a step is an update here, there a micro-batch"},
    {"train.out_dir", "", "every run has a folder of its own in nsad's state"},
  };
  return kFlags;
}
// clang-format on

const PredecessorFlag* find_predecessor_flag(std::string_view name) {
  const auto& flags = predecessor_flags();
  const auto found =
      std::find_if(flags.begin(), flags.end(), [&](const auto& flag) { return flag.name == name; });
  return found == flags.end() ? nullptr : &*found;
}

} // namespace nsa::spec
