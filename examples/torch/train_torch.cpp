/* SPDX-FileCopyrightText: The libdualpipe authors
 * SPDX-License-Identifier: MIT
 * train_torch.cpp: a transformer of libtorch modules, trained in a pipeline.
 *
 *     train_torch serial                      one process, plain autograd: the reference
 *     dualpipe run -n 2 -- train_torch zb1p   the same losses, to the last bit: diff them
 *
 * Behind the method: `kill STEP RANK`, a rank dies and comes back (dualpipe run --respawn 1);
 * `swap STEP COMM`, another transport; `throw STEP MICROBATCH`, an exception in a forward. */
#include <dualpipe/run.h>

#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstdlib>

#include "stage_torch.hpp"

using stage_torch::Tensor;

enum { BATCH = 2, TOKENS = 16, WIDTH = 32, HEADS = 4, WORDS = 48, BLOCKS = 6, PARTS = BLOCKS + 2 };
enum { MICROBATCHES = 8, STEPS = 12 };

/* ---- the model: an embedding, blocks, a head ---- */

struct Layer : torch::nn::Module {
    /* input and target: words, where the library gives them (stage.h) */
    virtual Tensor forward(const Tensor &x, const void *input, const void *target) = 0;
};

static Tensor words_at(const void *memory)
{
    return stage_torch::over(memory, {BATCH, TOKENS}, torch::kInt64);
}

struct Embedding : Layer {
    torch::nn::Embedding word{nullptr}, place{nullptr};

    Embedding()
    {
        word = register_module("word", torch::nn::Embedding(WORDS, WIDTH));
        place = register_module("place", torch::nn::Embedding(TOKENS, WIDTH));
    }
    Tensor forward(const Tensor &, const void *input, const void *) override
    {
        return word(words_at(input)) + place(torch::arange(TOKENS));
    }
};

struct Block : Layer {
    torch::nn::LayerNorm norm1{nullptr}, norm2{nullptr};
    std::shared_ptr<stage_torch::Linear> qkv, out, up, down;

    Block()
    {
        const auto norm = torch::nn::LayerNormOptions({WIDTH});

        norm1 = register_module("norm1", torch::nn::LayerNorm(norm));
        qkv = register_module("qkv", std::make_shared<stage_torch::Linear>(WIDTH, 3 * WIDTH));
        out = register_module("out", std::make_shared<stage_torch::Linear>(WIDTH, WIDTH));
        norm2 = register_module("norm2", torch::nn::LayerNorm(norm));
        up = register_module("up", std::make_shared<stage_torch::Linear>(WIDTH, 4 * WIDTH));
        down = register_module("down", std::make_shared<stage_torch::Linear>(4 * WIDTH, WIDTH));
    }
    Tensor forward(const Tensor &x, const void *, const void *) override
    {
        const Tensor all = qkv->forward(norm1(x)).view({BATCH, TOKENS, 3, HEADS, WIDTH / HEADS});
        const Tensor heads = all.permute({2, 0, 3, 1, 4}) / std::pow(double(WIDTH) / HEADS, 0.25);
        const Tensor future = torch::ones({TOKENS, TOKENS}, torch::kBool).triu(1);
        const Tensor scores = heads[0].matmul(heads[1].transpose(-1, -2)).masked_fill(future, -1e9);
        const Tensor mixed = scores.softmax(-1).matmul(heads[2]).transpose(1, 2);
        const Tensor y = x + out->forward(mixed.reshape({BATCH, TOKENS, WIDTH}));

        return y + down->forward(torch::gelu(up->forward(norm2(y))));
    }
};

/* When it throws, by the command line. */
static struct {
    int64_t step, microbatch;
} thrown = {-1, -1};

struct Head : Layer {
    torch::nn::LayerNorm norm{nullptr};
    std::shared_ptr<stage_torch::Linear> words;

    Head()
    {
        norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({WIDTH})));
        words = register_module("words", std::make_shared<stage_torch::Linear>(WIDTH, WORDS));
    }
    Tensor forward(const Tensor &x, const void *, const void *target) override
    {
        const Tensor scores = words->forward(norm(x)).view({-1, WORDS});

        return torch::nn::functional::cross_entropy(scores, words_at(target).view({-1}));
    }
};

/* Number `number` of the model, with the same first values in each process. */
static std::shared_ptr<Layer> make_layer(int number)
{
    torch::manual_seed(static_cast<uint64_t>(number));
    if (number == 0)
        return std::make_shared<Embedding>();
    if (number == PARTS - 1)
        return std::make_shared<Head>();
    return std::make_shared<Block>();
}

/* ---- data and optimizer ---- */

static int64_t text[MICROBATCHES][BATCH * TOKENS + 1]; /* the targets lie one word behind the inputs */

static void write_text(int64_t step)
{
    for (int64_t m = 0; m < MICROBATCHES; m++)
        for (int64_t i = 0, word = (17 * step + 5 * m) % WORDS; i <= BATCH * TOKENS; i++) {
            text[m][i] = word;
            word = (word * word + 3 * word + 7) % WORDS;
        }
}

/* AdamW. torch::optim works too, on the modules' parameters, but checkpoints and recovery do not
 * see its state. */
static void update(Tensor p, const Tensor &g, Tensor m, Tensor v, int64_t step)
{
    const double t = static_cast<double>(step + 1), rate = 0.01;

    m.mul_(0.9).add_(g, 0.1);
    v.mul_(0.95).addcmul_(g, g, 0.05);
    p.mul_(1 - rate * 0.01);
    p.addcdiv_(m / (1 - std::pow(0.9, t)), (v / (1 - std::pow(0.95, t))).sqrt_().add_(1e-8), -rate);
}

static void print_losses(int64_t step, const double *losses)
{
    std::printf("step %2d ", static_cast<int>(step));
    for (int m = 0; m < MICROBATCHES; m++)
        std::printf(" %a", losses[m]);
    std::printf("\n");
}

/* ---- one process, plain autograd; gradients are summed as pipeline.h says: by halves ---- */

static int train_serially()
{
    std::vector<std::shared_ptr<Layer>> layers;
    std::vector<Tensor> params, of_first_half, m, v;

    for (int number = 0; number < PARTS; number++) {
        layers.push_back(make_layer(number));
        for (const Tensor &p : layers.back()->parameters()) {
            params.push_back(p);
            of_first_half.push_back(Tensor());
            m.push_back(torch::zeros_like(p));
            v.push_back(torch::zeros_like(p));
        }
    }
    for (int64_t step = 0; step < STEPS; step++) {
        double losses[MICROBATCHES];

        write_text(step);
        for (int n = 0; n < MICROBATCHES; n++) {
            Tensor x;

            for (size_t i = 0; n % (MICROBATCHES / 2) == 0 && i < params.size(); i++) {
                of_first_half[i] = params[i].grad();
                params[i].mutable_grad() = torch::zeros_like(params[i]);
            }
            for (const auto &layer : layers)
                x = layer->forward(x, text[n], text[n] + 1);
            losses[n] = x.item<double>();
            x.backward(torch::full_like(x, 1.0 / MICROBATCHES));
        }
        for (size_t i = 0; i < params.size(); i++) {
            const torch::NoGradGuard none;

            update(params[i], of_first_half[i] + params[i].grad(), m[i], v[i], step);
        }
        print_losses(step, losses);
    }
    return 0;
}

/* ---- the pipeline ---- */

/* What happens in one of the steps. */
struct Event {
    std::string what;
    int64_t step = -1;
    std::string detail;
};

struct Trainer {
    std::map<int32_t, stage_torch::Stage> stages; /* by their number */
    std::vector<dp_stage_t *> made;               /* a swap or a recovery makes them anew */
    std::vector<std::vector<float>> moments;      /* of AdamW, two for each chunk */
    double losses[STEPS][MICROBATCHES] = {};
};

static dp_status_t build(void *user, const dp_build_context_t *, int32_t number, int32_t count, dp_stage_t **stage_out)
{
    Trainer *const trainer = static_cast<Trainer *>(user);
    const bool first = trainer->stages.find(number) == trainer->stages.end();
    stage_torch::Stage &stage = trainer->stages[number];

    for (int i = number * PARTS / count; first && i < (number + 1) * PARTS / count; i++) {
        const std::shared_ptr<Layer> layer = make_layer(i);

        stage.add("layer" + std::to_string(i), layer, {BATCH, TOKENS, WIDTH},
                  [layer](const Tensor &x, const dp_segment_call_t &call) {
                      if (call.target != nullptr && call.step == thrown.step && call.microbatch == thrown.microbatch)
                          throw std::runtime_error("told to throw");
                      return layer->forward(x, call.input, call.target);
                  });
    }
    const dp_status_t status = stage.create(sizeof(float) * BATCH * TOKENS * WIDTH, DP_F32, stage_out);

    if (status == DP_OK)
        trainer->made.push_back(*stage_out);
    return status;
}

/* Before a recovery, and at the end. */
static void drop_tapes(void *user)
{
    for (auto &item : static_cast<Trainer *>(user)->stages)
        item.second.drop_tapes();
}

/* For each chunk: first values, and what recovery has to know besides. */
static dp_status_t prepare(dp_pipeline_t *pipeline, Trainer &trainer)
{
    auto state = dualpipe::sized<dp_state_t>();
    dp_status_t status = DP_OK;

    for (int32_t c = 0; c < dp_pipeline_chunks(pipeline) && status == DP_OK; c++) {
        auto chunk = dualpipe::sized<dp_chunk_view_t>();

        status = dp_pipeline_chunk(pipeline, c, &chunk);
        if (status == DP_OK)
            trainer.stages[chunk.stage].adopt(chunk);
        for (const char *name : {"moment1", "moment2"}) {
            trainer.moments.emplace_back(chunk.param_count);
            state.name = name;
            state.scope = DP_STATE_PARAMS;
            state.chunk = c;
            state.host = 1;
            state.memory = trainer.moments.back().data();
            state.dtype = DP_F32;
            if (status == DP_OK)
                status = dp_pipeline_register_state(pipeline, &state);
        }
    }
    state = dualpipe::sized<dp_state_t>();
    state.name = "losses";
    state.scope = DP_STATE_JOB;
    state.host = 1;
    state.memory = trainer.losses;
    state.dtype = DP_F64;
    state.count = STEPS * MICROBATCHES;
    return status == DP_OK ? dp_pipeline_register_state(pipeline, &state) : status;
}

static dp_status_t update_all(dp_pipeline_t *pipeline, Trainer &trainer, int64_t step)
{
    for (int32_t c = 0; c < dp_pipeline_chunks(pipeline); c++) {
        auto chunk = dualpipe::sized<dp_chunk_view_t>();
        const dp_status_t status = dp_pipeline_chunk(pipeline, c, &chunk);

        if (status < 0)
            return status;
        for (uint32_t i = 0; i < chunk.nparams; i++) {
            const size_t at = chunk.param_list[i].offset;
            const auto part = [&](void *all) {
                return stage_torch::over(static_cast<float *>(all) + at,
                                         {static_cast<int64_t>(chunk.param_list[i].count)}, torch::kFloat32);
            };

            update(part(chunk.params), part(chunk.grads), part(trainer.moments[2 * static_cast<size_t>(c)].data()),
                   part(trainer.moments[2 * static_cast<size_t>(c) + 1].data()), step);
        }
    }
    return DP_OK;
}

static dp_status_t run_step(dp_pipeline_t *pipeline, Trainer &trainer, int64_t number)
{
    const void *inputs[MICROBATCHES], *targets[MICROBATCHES];
    double losses[MICROBATCHES];
    auto step = dualpipe::sized<dp_step_t>();

    write_text(number);
    for (int m = 0; m < MICROBATCHES; m++) {
        inputs[m] = text[m];
        targets[m] = text[m] + 1;
    }
    step.inputs = inputs;
    step.targets = targets;
    step.losses = losses;
    dp_status_t status = dp_pipeline_step(pipeline, &step);

    if (status == DP_OK)
        status = dp_pipeline_commit(pipeline); /* the step counts, on all ranks or on none */
    if (status == DP_OK)
        status = update_all(pipeline, trainer, number);
    if (status == DP_OK)
        std::memcpy(trainer.losses[number], losses, sizeof(losses));
    return status;
}

static dp_status_t train(dp_pipeline_t *pipeline, dp_group_t *group, Trainer &trainer, const Event &event)
{
    const torch::NoGradGuard none; /* of this thread: the optimizer's. Parts set their own mode */
    int64_t step = 0, first;
    dp_status_t status = prepare(pipeline, trainer);

    if (status == DP_OK) /* a process in place of a dead one gets the state of its mirror */
        status = dp_pipeline_recover(pipeline, DP_OK, &step);
    first = step;
    while (status == DP_OK && step <= STEPS) {
        if (step == event.step && event.what == "kill" && first == 0 && dp_group_rank(group) == std::stoi(event.detail))
            std::raise(SIGKILL);
        if (step == event.step && event.what == "swap")
            status = dp_pipeline_swap_comm(pipeline, event.detail.c_str());
        if (status == DP_OK) /* behind the last step all wait until everybody has made it */
            status = step < STEPS ? run_step(pipeline, trainer, step) : dp_group_barrier(group);
        if (status == DP_OK)
            step++;
        else
            status = dp_pipeline_recover(pipeline, status, &step);
    }
    for (int64_t n = 0; n < STEPS && status == DP_OK && dp_group_rank(group) == 0; n++)
        print_losses(n, trainer.losses[n]);
    return status;
}

static int train_pipeline(const char *method, const Event &event)
{
    Trainer trainer;
    auto options = dualpipe::sized<dp_pipeline_options_t>();
    dp_pipeline_t *pipeline = nullptr;
    dp_status_t status = dp_group_join(nullptr, &options.group);

    options.method = method;
    options.microbatches = MICROBATCHES;
    options.boundary_bytes = sizeof(float) * BATCH * TOKENS * WIDTH;
    options.dtype = DP_F32;
    options.build = dualpipe::guarded<build>;
    options.retire = options.unbuild = drop_tapes;
    options.user = &trainer;
    if (status == DP_OK)
        status = dp_pipeline_open(&options, &pipeline);
    if (status == DP_OK)
        status = train(pipeline, options.group, trainer, event);
    if (status < 0)
        std::fprintf(stderr, "train_torch: %s\n", dp_last_error());
    dp_pipeline_close(pipeline);
    for (dp_stage_t *stage : trainer.made)
        dp_stage_free(stage);
    dp_group_leave(options.group);
    return status < 0;
}

int main(int argc, char **argv)
{
    Event event;

    if (argc != 2 && argc != 5) {
        std::fprintf(stderr, "usage: train_torch serial\n"
                             "       train_torch METHOD [kill STEP RANK | swap STEP COMM | throw STEP MICROBATCH]\n");
        return 2;
    }
    at::set_num_threads(1); /* ranks share the cores; and bits may depend on it */
    if (argc == 5)
        event = {argv[2], std::atoi(argv[3]), argv[4]};
    if (event.what == "throw")
        thrown = {event.step, std::atoi(argv[4])};
    return std::string(argv[1]) == "serial" ? train_serially() : train_pipeline(argv[1], event);
}
