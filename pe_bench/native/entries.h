// What a library offers, the same of both kernels. `Tensor`, `Forward` and `Backward` are known where it is
// included.
#pragma once

extern "C" {

void pe_bench_use_threads(Parallel parallel) { lent_threads = parallel; }

// `bias` is [heads, tokens] or null; `normalizers` [2, batch, heads, tokens] is written for the
// backward pass.
// Returns 0, or 1 where there was no memory.
int pe_bench_forward(const Shape* shape, const Tensor* q, const Tensor* k, const Tensor* v, const float* bias,
                     const Tensor* out, float* normalizers) {
    const int64_t parts = parts_of_head(*shape);
    return !each_part<Forward>(*shape, parts, [&](Forward& pass, int64_t b, int64_t h, Part part) {
        pass.head(*shape, *q, *k, *v, bias, *out, normalizers, b, h, part);
    });
}

// `bias_gradients` is [batch, heads, tokens] and `bias_gradient`, its sum over the batch, [heads, tokens];
// both are null where it is not wanted.
int pe_bench_backward(const Shape* shape, const Tensor* q, const Tensor* k, const Tensor* v,
                      const float* bias, const Tensor* out, const float* normalizers, const Tensor* slope,
                      const Tensor* dq, const Tensor* dk, const Tensor* dv, float* bias_gradients,
                      float* bias_gradient) {
    const bool done = each_part<Backward>(*shape, 1, [&](Backward& pass, int64_t b, int64_t h, Part) {
        pass.head(*shape, *q, *k, *v, bias, *out, normalizers, *slope, *dq, *dk, *dv, bias_gradients, b, h);
    });
    if (bias_gradient != nullptr) add_batch(*shape, bias_gradients, bias_gradient);
    return !done;
}
}
