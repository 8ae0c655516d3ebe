/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * stage_torch.hpp: stages whose backward is libtorch's autograd (C++17, on device_cpu).
 *
 *     stage_torch::Stage stage;   // lives until the pipeline is closed
 *     stage.add("block0", module, {batch, tokens, width},
 *               [module](const Tensor &x, const dp_segment_call_t &call) { return module->forward(x); });
 *     status = stage.create(boundary_bytes, DP_F32, stage_out);        // in `build`, each time
 *     stage.adopt(view);                                               // once open has returned
 *
 * stage_torch::Linear leaves its weight's gradient to W, as zero-bubble schedules want it. All else
 * is added to in I. */
#ifndef STAGE_TORCH_HPP
#define STAGE_TORCH_HPP

#include <dualpipe/dualpipe.hpp>
#include <torch/torch.h>

#include <cstring>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace stage_torch
{
using torch::Tensor;

/* What one micro-batch leaves in one part: the graph, from F to I, and products, from I to W. */
struct Tape {
    Tensor x, y;
    std::vector<std::function<void()>> products;
};

/* That of the forward which this thread is in; nullptr outside of a pipeline. */
inline thread_local Tape *recording = nullptr;

/* y = x w^T + b. Its backward gives dx and b's gradient, and puts the product for w on the tape. */
struct DeferredLinear : torch::autograd::Function<DeferredLinear> {
    static Tensor forward(torch::autograd::AutogradContext *context, const Tensor &x, const Tensor &w, const Tensor &b)
    {
        context->save_for_backward({x, w});
        context->saved_data["tape"] = reinterpret_cast<int64_t>(recording);
        return torch::linear(x, w, b);
    }
    static torch::autograd::variable_list backward(torch::autograd::AutogradContext *context,
                                                   torch::autograd::variable_list dys)
    {
        Tape *const tape = reinterpret_cast<Tape *>(context->saved_data["tape"].toInt());
        const Tensor x = context->get_saved_variables()[0], w = context->get_saved_variables()[1];
        const Tensor rows = x.reshape({-1, x.size(-1)}), dy = dys[0].reshape({-1, dys[0].size(-1)});

        tape->products.push_back([w, rows, dy] {
            Tensor dw = w.grad(); /* the accumulator of this micro-batch, where Part has put it */

            dw.add_(dy.t().mm(rows));
        });
        return {dy.mm(w).view_as(x), Tensor(), dy.sum(0)};
    }
};

/* torch::nn::Linear with a bias. */
struct Linear : torch::nn::LinearImpl {
    using LinearImpl::LinearImpl;
    Tensor forward(const Tensor &x)
    {
        return recording != nullptr ? DeferredLinear::apply(x, weight, bias) : torch::linear(x, weight, bias);
    }
};

/* Memory of the library as a tensor; it stays the library's. */
inline Tensor over(const void *memory, at::IntArrayRef shape, torch::ScalarType type)
{
    return torch::from_blob(const_cast<void *>(memory), shape, type);
}

/* A module as one segment. */
class Part
{
public:
    /* y; in the last part of the last stage the loss, one number. x: undefined in the first part of
     * the first stage, which reads call.input. */
    using Function = std::function<Tensor(const Tensor &x, const dp_segment_call_t &call)>;

    Part(std::string part_name, std::shared_ptr<torch::nn::Module> part_module, std::vector<int64_t> boundary,
         Function part_function)
        : name(std::move(part_name)), module(std::move(part_module)), shape(std::move(boundary)),
          function(std::move(part_function))
    {
        for (const auto &item : module->named_parameters()) {
            const Tensor &p = item.value();
            dp_param_t param{};

            names.push_back(item.key());
            param.kind = p.dim() > 1 ? DP_PARAM_MATRIX : DP_PARAM_VECTOR;
            param.offset = count;
            param.count = static_cast<size_t>(p.numel());
            param.fan_in = static_cast<uint32_t>(p.size(-1));
            count += (param.count + 15) / 16 * 16; /* each begins at a multiple of 64 bytes */
            params.push_back(param);
        }
        for (size_t i = 0; i < params.size(); i++)
            params[i].name = names[i].c_str();
    }
    Part(const Part &) = delete;
    Part &operator=(const Part &) = delete;

    /* What torch holds for micro-batches that have not come to their W. The library counts none of
     * it. A step that has ended well leaves none. */
    void drop_tapes()
    {
        tapes.clear();
    }

private:
    friend class Stage;

    Tensor at(const void *memory, size_t i, const Tensor &like) const
    {
        return over(static_cast<const char *>(memory) + params[i].offset * torch::elementSize(type), like.sizes(), type);
    }
    void adopt(void *memory)
    {
        const torch::NoGradGuard none;
        const std::vector<Tensor> all = module->parameters();

        for (size_t i = 0; i < all.size(); i++)
            at(memory, i, all[i]).copy_(all[i]);
        use_params(memory);
    }
    void use_params(const void *memory)
    {
        const std::vector<Tensor> all = module->parameters();

        for (size_t i = 0; memory != params_at && i < all.size(); i++)
            Tensor(all[i]).set_data(at(memory, i, all[i]));
        params_at = memory;
    }
    /* .grad is the accumulator of this micro-batch's half: autograd adds to it in place. */
    void use_grads(const void *memory)
    {
        const std::vector<Tensor> all = module->parameters();

        for (size_t i = 0; memory != grads_at && i < all.size(); i++)
            Tensor(all[i]).mutable_grad() = at(memory, i, all[i]);
        grads_at = memory;
    }

    void forward(const dp_segment_call_t &call)
    {
        const torch::AutoGradMode mode(call.forward_only == 0); /* of this thread: it is not the trainer's */
        Tape &tape = tapes[call.microbatch];

        tape = Tape();
        use_params(call.params);
        if (call.x != nullptr) /* the slot is used again: the tape has a copy */
            tape.x = over(call.x, shape, type).clone().requires_grad_(call.forward_only == 0);
        recording = &tape;
        try {
            tape.y = function(tape.x, call);
        } catch (...) {
            recording = nullptr;
            throw;
        }
        recording = nullptr;
        if (call.y != nullptr)
            over(call.y, shape, type).copy_(tape.y.detach());
        else if (call.target != nullptr)
            *call.loss += tape.y.item<double>();
        if (call.forward_only != 0)
            tapes.erase(call.microbatch);
    }
    void backward_input(const dp_segment_call_t &call)
    {
        Tape &tape = tapes.at(call.microbatch);
        /* a copy, as of x: autograd hands it on, and so it is in products that wait for W */
        const Tensor dy =
            call.dy != nullptr ? over(call.dy, shape, type).clone() : torch::full_like(tape.y, call.loss_scale);

        use_grads(call.grads);
        torch::autograd::backward({tape.y}, {dy});
        if (call.dx != nullptr)
            over(call.dx, shape, type).copy_(tape.x.grad());
        tape.x = tape.y = Tensor(); /* the graph goes; products hold what they need */
    }
    void backward_weight(const dp_segment_call_t &call)
    {
        const torch::NoGradGuard none;

        use_grads(call.grads);
        for (const auto &product : tapes.at(call.microbatch).products)
            product();
        tapes.erase(call.microbatch);
    }

    /* c10::Error appends where it was thrown, in many lines; guarded() makes an error of the rest. */
    template <void (Part::*pass)(const dp_segment_call_t &)>
    static dp_status_t run(void *self, const dp_segment_call_t *call)
    {
        try {
            (static_cast<Part *>(self)->*pass)(*call);
        } catch (const c10::Error &e) {
            return dp_fail(DP_ERR_INVALID, "%s", e.what_without_backtrace());
        }
        return DP_OK;
    }

    std::string name;
    std::shared_ptr<torch::nn::Module> module;
    std::vector<int64_t> shape; /* of x and y */
    Function function;
    torch::ScalarType type = torch::kFloat32; /* of create()'s dtype */
    std::vector<std::string> names;
    std::vector<dp_param_t> params;
    size_t count = 0; /* elements, gaps included */
    const void *params_at = nullptr, *grads_at = nullptr;
    std::map<int32_t, Tape> tapes; /* by micro-batch */
};

/* The parts of one stage. Recovery and a swap call `build` again: create() is then called on the
 * same Stage, whose modules stay. */
class Stage
{
public:
    void add(std::string name, std::shared_ptr<torch::nn::Module> module, std::vector<int64_t> shape,
             Part::Function function)
    {
        parts.emplace_back(std::move(name), std::move(module), std::move(shape), std::move(function));
    }

    dp_status_t create(size_t boundary_bytes, dp_dtype_t dtype, dp_stage_t **stage_out)
    {
        std::list<dp_segment_t> segments;
        std::list<dp_block_sizes_t> sizes;
        std::list<std::string> prefixes;
        std::vector<dp_part_t> made;

        if (dtype != DP_F32 && dtype != DP_F64) /* gradients of bf16 are f32, which .grad refuses */
            return dp_fail(DP_ERR_UNSUPPORTED, "stage_torch: dtype %d: use DP_F32 or DP_F64", static_cast<int>(dtype));
        for (Part &part : parts) {
            part.type = dtype == DP_F64 ? torch::kFloat64 : torch::kFloat32;
            for (const Tensor &p : part.module->parameters())
                if (p.scalar_type() != part.type)
                    return dp_fail(DP_ERR_INVALID, "%s: a parameter is %s, dtype is %s: use Module::to()",
                                   part.name.c_str(), toString(p.scalar_type()), toString(part.type));
            auto segment = dualpipe::sized<dp_segment_t>();
            auto size = dualpipe::sized<dp_block_sizes_t>();
            auto p = dualpipe::sized<dp_part_t>();

            segment.name = part.name.c_str();
            segment.self = &part;
            segment.host_forward = dualpipe::guarded<&Part::run<&Part::forward>>;
            segment.host_backward_input = dualpipe::guarded<&Part::run<&Part::backward_input>>;
            segment.host_backward_weight = dualpipe::guarded<&Part::run<&Part::backward_weight>>;
            size.param_count = part.count;
            size.nparams = static_cast<uint32_t>(part.params.size());
            p.nsegments = 1;
            p.segments = &segments.emplace_back(segment);
            p.sizes = &sizes.emplace_back(size);
            p.param_list = part.params.data();
            p.prefix = prefixes.emplace_back(part.name + ".").c_str();
            made.push_back(p);
        }
        return dp_stage_create(made.data(), static_cast<int32_t>(made.size()), boundary_bytes, dtype, stage_out);
    }

    /* Once, when open has returned: the chunk gets the modules' values, and they its memory. Later
     * each pass looks where that is. */
    void adopt(const dp_chunk_view_t &view)
    {
        const dp_param_t *p = view.param_list; /* parts stand there in their order */

        for (Part &part : parts) {
            if (part.params.empty())
                continue;
            const size_t at = (p->offset - part.params[0].offset) * torch::elementSize(part.type);

            part.adopt(static_cast<char *>(view.params) + at);
            p += part.params.size();
        }
    }

    /* In `retire` and `unbuild`: nothing of the library runs then. */
    void drop_tapes()
    {
        for (Part &part : parts)
            part.drop_tapes();
    }

private:
    std::list<Part> parts; /* a list: segments point to its elements */
};
} // namespace stage_torch

#endif
