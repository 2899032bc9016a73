//! Tables by which names of kernels become short. `*` at an end of a word stands for anything.

/// Namespaces that are left out or shortened, with those within them: the first part of a name, and what stands for it. Suffixes
/// are removed from names of kernels within these alone.
pub(super) const LIBRARIES: &[(&str, &str)] = &[
    ("at", ""),
    ("c10", ""),
    ("caffe2", ""),
    ("pytorch_flash", ""),
    ("flash", ""),
    ("at_cuda_detail", "cub"),
    ("cub", "cub"),
    ("thrust", "thrust"),
    ("cutlass*", "cutlass"),
    ("fused_cutlass*", "cutlass"),
    ("cublasLt", "cublasLt"),
    ("cudnn", "cudnn"),
    ("cusparse", "cusparse"),
];

/// Kernels without a name of their own, which are called after their first argument.
pub(super) const CARRIERS: &[&str] = &[
    "Kernel",
    "Kernel2",
    "device_kernel",
    "_kernel_agent",
    "static_kernel",
    "enable_sm90*",
];

/// Functions and classes that only wrap what is meant: the first of their arguments that means something.
pub(super) const WRAPPERS: &[&str] = &[
    "gpu_kernel*",
    "gpu_index_kernel",
    "opmath_gpu_kernel*",
    "opmath_symmetric_gpu_kernel*",
    "jitted_gpu_kernel*",
    "cpu_kernel*",
    "legacy",
    "ReduceOp",
    "func_wrapper_t",
    "BinaryFunctor",
    "AUnaryFunctor",
    "BUnaryFunctor",
    "CompareFunctor_wrapper",
    "__nv_hdl_wrapper_t",
    "__nv_dl_wrapper_t",
    "__nv_dl_tag",
    "ParallelForAgent",
    "for_each_f",
    "op_wrapper_t",
    "device_unary_op",
    "transform_f",
    "unary_transform_f",
    "binary_transform_f",
    "wrapped_function",
];

/// Types that say nothing about what a kernel does.
pub(super) const MEANINGLESS: &[&str] = &[
    "array",
    "Array",
    "tuple",
    "pair",
    "vector_t",
    "*OffsetCalculator",
    "LoadWith*",
    "StoreWith*",
    "OpaqueType",
    "identity_decomposer_t",
    "device_ptr",
    "*policy_hub*",
    "UnaryOpFunctor*",
    "*Params",
    "*Params*",
    "params",
    "*Traits",
    "*_traits",
    "*Policy*",
    "policy_hub*",
    "*Metadata",
    "*Meta",
    "*Args",
    "TensorInfo",
    "*Accessor*",
    "NullType",
    "*iterator*",
    "*Iterator*",
    "C",
    "integral_constant",
    "offset_t",
    "*Philox*",
    "index_sequence",
    "KernelParam*",
    "TensorDims",
    "*SizeStride",
    "Arguments",
    "*Descriptor",
    "Underscore",
    "Layout",
    "ScaledNothing",
    "CollectiveMma",
    "*Scheduler",
    "use_default",
    "Tensor",
    "TensorIterator*",
    "Scalar",
    "complex",
    "IntegerDivider",
    "*Layout",
    "AgentReduce*",
    "ScanTileState",
    "ReduceByKeyScanTileState",
    "DeviceMinMax*",
    "less_nan",
    "InputScanOp",
    "*Config",
    "any_system_tag",
    "tag",
];

/// Words at the beginning of names of functions and classes that are left out.
pub(super) const PREFIXES: &[&str] = &[
    "CUDAFunctorOnSelf_",
    "CUDAFunctorOnOther_",
    "CUDAFunctor_",
    "__",
];

/// Words at their end that are left out.
pub(super) const SUFFIXES: &[&str] = &[
    "_kernel_",
    "KernelImplInternal",
    "CUDAKernelImpl",
    "KernelImpl",
    "CUDAKernel",
    "_kernel_cuda_impl",
    "_cuda_kernel_impl",
    "_kernel_cuda",
    "_cuda_kernel",
    "_kernel_impl",
    "_impl_kernel",
    "_kernel",
    "_impl",
    "_cuda",
    "Kernel",
    "Functor",
    "_functor",
    "Agent",
];

/// Words at the end of functors that are left out.
pub(super) const OPERATIONS: &[&str] = &["Ops", "Op", "_op"];

/// Words within names of kernels that are left out.
pub(super) const INNER: &[&str] = &["_cuda_kernel_", "_kernel_"];

/// Names that say nothing: the namespace before them is taken.
pub(super) const NAMELESS: &[&str] = &["functor", "F", "op", "Op", "impl", "kernel"];

/// Types of numbers, longer ones first, and what stands for them.
pub(super) const NUMBERS: &[(&str, &str)] = &[
    ("unsigned long long", "ulong"),
    ("unsigned short", "ushort"),
    ("unsigned long", "ulong"),
    ("unsigned char", "uchar"),
    ("unsigned int", "uint"),
    ("signed char", "char"),
    ("long long", "long"),
    ("cutlass::bfloat16_t", "bf16"),
    ("cutlass::half_t", "half"),
    ("__nv_bfloat162", "bf16x2"),
    ("__nv_bfloat16", "bf16"),
    ("c10::BFloat16", "bf16"),
    ("c10::Float8_e4m3fn", "e4m3"),
    ("c10::Float8_e5m2", "e5m2"),
    ("c10::Float8_e4m3fnuz", "e4m3fnuz"),
    ("c10::Float8_e5m2fnuz", "e5m2fnuz"),
    ("c10::complex<double>", "complex128"),
    ("c10::complex<float>", "complex64"),
    ("c10::complex<c10::Half>", "complex32"),
    ("c10::Half", "half"),
    ("__half2", "half2"),
    ("__half", "half"),
    ("double2", "double2"),
    ("float2", "float2"),
    ("double", "double"),
    ("float", "float"),
    ("short", "short"),
    ("half", "half"),
    ("bool", "bool"),
    ("char", "char"),
    ("long", "long"),
    ("int", "int"),
];

/// A kind of names made of words with `_` between them: its beginning, what stands for that, the sign between words that are
/// kept, and the words that are left out (`#` stands for digits).
pub(super) struct Words {
    /// Text in the name.
    pub with: &'static str,
    /// True if the text must be at the beginning of the name.
    pub first: bool,
    /// Words that stand for the beginning.
    pub called: &'static str,
    /// Sign between the words.
    pub between: char,
    /// Words that are left out.
    pub without: &'static [&'static str],
    /// Text at the beginning of a word that is left out.
    pub bare: &'static str,
    /// True if only the first of several words such as `64x64` is kept.
    pub one_tile: bool,
}

/// Names that are made of words.
pub(super) const WORDS: &[Words] = &[
    Words {
        with: "cutlass_",
        first: true,
        called: "cutlass ",
        between: ' ',
        without: &["cutlass", "#", "simt", "tensorop", "wmma", "align#"],
        bare: "",
        one_tile: true,
    },
    Words {
        with: "_xmma_",
        first: false,
        called: "xmma ",
        between: ' ',
        without: &[
            "",
            "#",
            "sm#",
            "xmma",
            "stage#",
            "warpsize*",
            "aligna#",
            "alignc#",
            "g#",
            "execute",
            "kernel",
            "cublas",
            "cudnn",
            "trt",
        ],
        bare: "tilesize",
        one_tile: false,
    },
];
