//! Names of real kernels: those of PyTorch 2.6.0 for sm_90 (`nvcap code '*' libtorch_cuda.so --sm 90`), and of cuBLAS, cuDNN, NCCL, CUTLASS, Triton and JAX.

use std::collections::HashSet;

use super::*;

/// Kernels and their short names in one trace, in this order.
const KERNELS: &[(&str, &str)] = &[
    (
        "void at::native::vectorized_elementwise_kernel<4, at::native::addcdiv_cuda_kernel(at::TensorIteratorBase&, c10::Scalar const&)::{lambda()#2}::operator()() const::{lambda()#7}::operator()() const::{lambda(float, float, float)#1}, std::array<char*, 4> >(int, at::native::addcdiv_cuda_kernel(at::TensorIteratorBase&, c10::Scalar const&)::{lambda()#2}::operator()() const::{lambda()#7}::operator()() const::{lambda(float, float, float)#1}, std::array<char*, 4>)",
        "vectorized_elementwise<addcdiv>",
    ),
    (
        "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>, std::array<char*, 1> >(int, at::native::FillFunctor<float>, std::array<char*, 1>)",
        "vectorized_elementwise<Fill>",
    ),
    (
        "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, std::array<char*, 3> >(int, at::native::CUDAFunctor_add<float>, std::array<char*, 3>)",
        "vectorized_elementwise<add>",
    ),
    (
        "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<c10::Half>, std::array<char*, 3> >(int, at::native::CUDAFunctor_add<c10::Half>, std::array<char*, 3>)",
        "vectorized_elementwise<add,half>",
    ),
    (
        "void at::native::vectorized_elementwise_kernel<2, at::native::CUDAFunctor_add<float>, std::array<char*, 3> >(int, at::native::CUDAFunctor_add<float>, std::array<char*, 3>)",
        "vectorized_elementwise<add,float>",
    ),
    (
        "void at::native::vectorized_elementwise_kernel<4, at::native::BinaryFunctor<float, float, float, at::native::binary_internal::MulFunctor<float> >, std::array<char*, 3> >(int, at::native::BinaryFunctor<float, float, float, at::native::binary_internal::MulFunctor<float> >, std::array<char*, 3>)",
        "vectorized_elementwise<Mul>",
    ),
    (
        "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::MeanOps<float, float, float, float>, unsigned int, float, 4> >(at::native::ReduceOp<float, at::native::MeanOps<float, float, float, float>, unsigned int, float, 4>)",
        "reduce<Mean>",
    ),
    (
        "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::func_wrapper_t<float, at::native::sum_functor<float, float, float>::operator()(at::TensorIterator&)::{lambda(float, float)#1}>, unsigned int, float, 4> >(at::native::ReduceOp<float, at::native::func_wrapper_t<float, at::native::sum_functor<float, float, float>::operator()(at::TensorIterator&)::{lambda(float, float)#1}>, unsigned int, float, 4>)",
        "reduce<sum>",
    ),
    (
        "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<c10::Half, at::native::MeanOps<c10::Half, float, float, float>, unsigned int, float, 4> >(at::native::ReduceOp<c10::Half, at::native::MeanOps<c10::Half, float, float, float>, unsigned int, float, 4>)",
        "reduce<Mean,half>",
    ),
    (
        "void at::native::elementwise_kernel<128, 2, void at::native::gpu_kernel_impl_nocast<at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&)::{lambda()#3}::operator()() const::{lambda()#7}::operator()() const::{lambda(float)#1}>(at::TensorIteratorBase&, at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&)::{lambda()#3}::operator()() const::{lambda()#7}::operator()() const::{lambda(float)#1} const&)::{lambda(int)#1}>(int, void at::native::gpu_kernel_impl_nocast<at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&)::{lambda()#3}::operator()() const::{lambda()#7}::operator()() const::{lambda(float)#1}>(at::TensorIteratorBase&, at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&)::{lambda()#3}::operator()() const::{lambda()#7}::operator()() const::{lambda(float)#1} const&)::{lambda(int)#1})",
        "elementwise<direct_copy>",
    ),
    (
        "void at::native::(anonymous namespace)::nll_loss_backward_reduce_cuda_kernel_2d<float, long>(float*, float const*, long const*, float const*, float const*, bool, int, int, long, long)",
        "nll_loss_backward_reduce_2d",
    ),
    (
        "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::(anonymous namespace)::FusedOptimizerTensorListMetadata<4>, at::native::(anonymous namespace)::FusedAdamMathFunctor<float, 4, 0, false>, float const*, double, double, double, double, double, bool, float const*, float const*>(at::native::(anonymous namespace)::FusedOptimizerTensorListMetadata<4>, at::native::(anonymous namespace)::FusedAdamMathFunctor<float, 4, 0, false>, float const*, double, double, double, double, double, bool, float const*, float const*)",
        "multi_tensor_apply<FusedAdamMath>",
    ),
    (
        "void at::native::(anonymous namespace)::cunn_SoftMaxForward<4, float, float, float, at::native::(anonymous namespace)::LogSoftMaxForwardEpilogue>(float*, float const*, int)",
        "cunn_SoftMaxForward<LogSoftMaxForwardEpilogue>",
    ),
    (
        "void at_cuda_detail::cub::DeviceRadixSortOnesweepKernel<at_cuda_detail::cub::DeviceRadixSortPolicy<int, int, unsigned int>::Policy900, false, int, int, unsigned int, int, int, at_cuda_detail::cub::detail::identity_decomposer_t>(int*, int*, unsigned int*, unsigned int const*, int*, int const*, int*, int const*, int, int, int, at_cuda_detail::cub::detail::identity_decomposer_t)",
        "cub::DeviceRadixSortOnesweep",
    ),
    (
        "void at_cuda_detail::cub::DeviceReduceSingleTileKernel<at_cuda_detail::cub::DeviceReducePolicy<int, unsigned long long, cuda::std::__4::plus<void> >::Policy600, int*, int*, int, cuda::std::__4::plus<void>, int, int>(int*, int*, int, cuda::std::__4::plus<void>, int)",
        "cub::DeviceReduceSingleTile<plus>",
    ),
    (
        "void thrust::THRUST_200302_500_600_700_750_800_860_900_NS::cuda_cub::core::_kernel_agent<thrust::THRUST_200302_500_600_700_750_800_860_900_NS::cuda_cub::__parallel_for::ParallelForAgent<thrust::THRUST_200302_500_600_700_750_800_860_900_NS::cuda_cub::__tabulate::functor<thrust::THRUST_200302_500_600_700_750_800_860_900_NS::device_ptr<long>, thrust::THRUST_200302_500_600_700_750_800_860_900_NS::system::detail::generic::detail::compute_sequence_value<int, void>, long>, long>, thrust::THRUST_200302_500_600_700_750_800_860_900_NS::cuda_cub::__tabulate::functor<thrust::THRUST_200302_500_600_700_750_800_860_900_NS::device_ptr<long>, thrust::THRUST_200302_500_600_700_750_800_860_900_NS::system::detail::generic::detail::compute_sequence_value<int, void>, long>, long>(thrust::THRUST_200302_500_600_700_750_800_860_900_NS::cuda_cub::__tabulate::functor<thrust::THRUST_200302_500_600_700_750_800_860_900_NS::device_ptr<long>, thrust::THRUST_200302_500_600_700_750_800_860_900_NS::system::detail::generic::detail::compute_sequence_value<int, void>, long>, long)",
        "thrust::ParallelFor<tabulate>",
    ),
    (
        "void cutlass::Kernel2<cutlass_80_simt_sgemm_64x64_8x5_nn_align1>(cutlass_80_simt_sgemm_64x64_8x5_nn_align1::Params)",
        "cutlass sgemm 64x64 nn",
    ),
    (
        "void cutlass::Kernel2<cutlass_80_simt_sgemm_64x64_8x5_nn_align4>(cutlass_80_simt_sgemm_64x64_8x5_nn_align4::Params)",
        "cutlass_80_simt_sgemm_64x64_8x5_nn_align4",
    ),
    (
        "void cutlass::Kernel2<cutlass_80_tensorop_s16816gemm_bf16_64x128_32x6_tn_align8>(cutlass_80_tensorop_s16816gemm_bf16_64x128_32x6_tn_align8::Params)",
        "cutlass s16816gemm bf16 64x128 tn",
    ),
    (
        "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize128x128x8_stage3_warpsize2x2x1_ffma_aligna4_alignc4_execute_kernel__51_cublas",
        "xmma gemm f32f32 f32 tn n 128x128x8 ffma",
    ),
    ("ampere_sgemm_128x64_nn", "ampere_sgemm_128x64_nn"),
    (
        "nvjet_tst_192x128_64x4_1x2_h_bz_coopA_NTT",
        "nvjet_tst_192x128_64x4_1x2_h_bz_coopA_NTT",
    ),
    (
        "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        "ncclDevKernel_AllReduce_Sum_f32_RING_LL",
    ),
    ("triton_poi_fused_add_0", "triton_poi_fused_add_0"),
    ("loop_add_fusion", "loop_add_fusion"),
    (
        "fmha_cutlassB_f32_aligned_64x64_k64_dropout_sm80(PyTorchMemEffAttention::AttentionBackwardKernel<cutlass::arch::Sm80, float, true, true, false, 64, 64, 64, false>::Params)",
        "fmha_cutlassB_f32_aligned_64x64_k64_dropout_sm80",
    ),
];

fn shown<'a>(names: impl IntoIterator<Item = &'a str>) -> Vec<String> {
    let mut taken = Taken::default();
    let name = |full| taken.name(full, &forms(full));
    names.into_iter().map(name).collect()
}

#[test]
fn short_names() {
    let names = shown(KERNELS.iter().map(|(full, _)| *full));
    for (name, (full, short)) in names.iter().zip(KERNELS) {
        assert_eq!(name, short, "{full}");
    }
}

/// No two kernels have one name, whatever comes first, and a kernel keeps its name.
#[test]
fn kernels_are_told_apart() {
    let others = include_str!("names.txt").lines();
    let mut all: Vec<&str> = KERNELS
        .iter()
        .map(|(full, _)| *full)
        .chain(others)
        .collect();
    assert!(all.len() > 100);
    for _ in 0..2 {
        let names = shown(all.iter().copied());
        let different: HashSet<&String> = names.iter().collect();
        assert_eq!(different.len(), all.len());
        for name in &names {
            assert!(name.chars().count() <= MOST_COLUMNS + 3, "{name}");
            assert!(
                !name.contains("at::native") && !name.contains("void "),
                "{name}"
            );
        }
        let twice = shown(all.iter().chain(&all).copied());
        assert_eq!(twice.get(all.len()..), Some(names.as_slice()));
        all.reverse();
    }
}

#[test]
fn the_last_resort_is_a_number() {
    let names = shown(["f(int)", "f(float)", "f(char)", "f(int)"]);
    assert_eq!(names, ["f", "f#2", "f#3", "f"]);
}

/// Names of people's own kernels keep their namespaces and words.
#[test]
fn other_names() {
    let names = [
        ("", ""),
        ("vadd", "vadd"),
        ("add(float*, int, float)", "add"),
        (
            "void (anonymous namespace)::scale<float>(float*, int)",
            "scale<float>",
        ),
        (
            "void my::scale_kernel<my::Policy2, 4>(float*)",
            "my::scale_kernel<Policy2,4>",
        ),
        (
            "void my::scale_kernel<my::Twice>(float*)",
            "my::scale_kernel<Twice>",
        ),
        ("void tile<float, 16, true>(float*)", "tile<float,16,1>"),
        (
            "void tile<my::Policy<float, 4>, my::Layout<128, 64, 32>>(float*)",
            "tile",
        ),
        (
            "main::{lambda(float*)#1}::operator()(float*) const",
            "main::{lambda#1}::operator()",
        ),
        ("core::fmt::Write::write_str", "core::fmt::Write::write_str"),
        (
            "cudapy::__main__::add[abi:v1](Array<float, 1, C, mutable, aligned>)",
            "cudapy::__main__::add",
        ),
    ];
    for (full, short) in names {
        assert_eq!(
            forms(full).first().map(String::as_str),
            Some(short),
            "{full}"
        );
    }
}

/// Names that are made to cost have forms all the same, and not after hours.
#[test]
fn hostile_names() {
    let names = [
        "<".repeat(1 << 16),
        "a<".repeat(1 << 15),
        "Kernel<".repeat(1 << 13),
        "gpu_kernel<ReduceOp<".repeat(1 << 12),
        "f<a::b(c)::{lambda()#1}, ".repeat(1 << 12),
        format!("k<{}>", "float, ".repeat(1 << 14)),
        format!("k<{}>", "a::".repeat(1 << 14)),
        format!("cutlass_{}", "64x64_".repeat(1 << 13)),
        "(anonymous namespace)::".repeat(1 << 12),
        "operator<".repeat(1 << 12),
        "\u{fffd}<\u{1f980}>".repeat(1 << 12),
    ];
    nvcap_waiting::ends("names that are made to cost are shortened", move || {
        for name in &names {
            assert!(!forms(name).is_empty());
        }
    });
}

/// Each of thousands of kernels with one name is numbered at once, also where some are called by such numbers, and a kernel is known
/// again without a search.
#[test]
fn numbers_are_not_searched_for() {
    let mut taken = Taken::default();
    let all: Vec<String> = (0..5_000).map(|n| format!("f(type{n})")).collect();
    let called: Vec<String> = (2..500).map(|n| format!("f#{n}")).collect();
    let mut name = |full: &String| taken.name(full, &forms(full));
    let others: Vec<String> = called.iter().map(&mut name).collect();
    let first: Vec<String> = all.iter().map(&mut name).collect();
    assert_eq!(others, called);
    assert_eq!(first[..3], ["f", "f#500", "f#501"]);
    let different: HashSet<&String> = first.iter().chain(&others).collect();
    assert_eq!(different.len(), first.len() + others.len());
    let looked = taken.looked;
    assert!(looked < 4 * (all.len() + called.len()), "{looked}");
    let again: Vec<String> = all.iter().map(|f| taken.name(f, &forms(f))).collect();
    assert_eq!((again, taken.looked), (first, looked));
}

/// Names that are kept have a bound in bytes; a kernel keeps its name beyond it.
#[test]
fn names_in_use_have_a_bound() {
    let mut taken = Taken::default();
    let long = |n: usize| format!("k{n:08}{}", "_a".repeat(8_000));
    let names: Vec<String> = (0..3_000).map(long).collect();
    for full in &names {
        assert_eq!(taken.name(full, &forms(full)), *full);
    }
    assert!(taken.bytes < MOST_BYTES + (16 << 10), "{}", taken.bytes);
    assert!(taken.given.len() < names.len());
    let known = taken.given.len();
    for full in &names {
        taken.name(full, &forms(full));
    }
    assert_eq!(taken.given.len(), known);
}
