// SPDX-FileCopyrightText: The libdualpipe authors
// SPDX-License-Identifier: MIT
//! smallest: the trainer of examples/smallest, in Rust. `dualpipe run -n 2 -- smallest` trains two
//! stages y = tanh(x W) with DualPipe; `smallest serial` prints the same losses without it.
use dualpipe_sys::*;
use std::ffi::{c_void, CStr};
use std::ptr::{null, null_mut};

const MICROBATCHES: usize = 16;
const WIDTH: usize = 8;
const STEPS: usize = 400;

type Row = [f64; WIDTH];

/// What a micro-batch leaves behind for its weight gradient: z = x W, y = tanh(z).
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Saved {
    x: Row,
    y: Row,
    dz: Row,
}

// ---- the computation ----

/// Returns the loss where there is a target.
fn forward(w: &[Row; WIDTH], x: &Row, target: Option<&Row>, saved: &mut Saved) -> f64 {
    let mut loss = 0.0;

    saved.x = *x;
    for j in 0..WIDTH {
        let mut z = 0.0;

        for i in 0..WIDTH {
            z += x[i] * w[i][j];
        }
        saved.y[j] = z.tanh();
        if let Some(t) = target {
            loss += 0.5 * (saved.y[j] - t[j]) * (saved.y[j] - t[j]);
        }
    }
    loss
}

/// `of_y(j)`: the gradient of y[j].
fn backward_input(w: &[Row; WIDTH], saved: &mut Saved, of_y: impl Fn(usize, f64) -> f64) -> Row {
    let mut dx = [0.0; WIDTH];

    for j in 0..WIDTH {
        saved.dz[j] = of_y(j, saved.y[j]) * (1.0 - saved.y[j] * saved.y[j]);
    }
    for i in 0..WIDTH {
        for j in 0..WIDTH {
            dx[i] += saved.dz[j] * w[i][j];
        }
    }
    dx
}

fn backward_weight(saved: &Saved, dw: &mut [Row; WIDTH]) {
    for i in 0..WIDTH {
        for j in 0..WIDTH {
            dw[i][j] += saved.x[i] * saved.dz[j];
        }
    }
}

fn first_value(stage: usize, k: usize) -> f64 {
    0.3 * ((k * k + stage) as f64).cos()
}

fn data() -> ([Row; MICROBATCHES], [Row; MICROBATCHES]) {
    let (mut x, mut target) = ([[0.0; WIDTH]; MICROBATCHES], [[0.0; WIDTH]; MICROBATCHES]);

    for m in 0..MICROBATCHES {
        for i in 0..WIDTH {
            x[m][i] = 0.7 * (((m * WIDTH + i) * (m * WIDTH + i)) as f64).sin();
            target[m][WIDTH - 1 - i] = x[m][i];
        }
    }
    (x, target)
}

// ---- segments: stage.h says what `call` holds in each ----

/// Reports a panic as an error: it must not unwind through C.
fn caught(what: impl FnOnce()) -> dp_status_t {
    match std::panic::catch_unwind(std::panic::AssertUnwindSafe(what)) {
        Ok(()) => DP_OK as dp_status_t,
        Err(_) => unsafe { dp_fail(DP_ERR_INVALID, b"a segment in Rust panicked\0".as_ptr().cast()) },
    }
}

unsafe extern "C" fn segment_forward(_: *mut c_void, call: *const dp_segment_call_t) -> dp_status_t {
    caught(|| {
        let c = &*call;
        let saved = &mut *c.saved.cast::<Saved>();
        let x = if c.x.is_null() { c.input } else { c.x }; // the first stage gets the trainer's data
        let loss = forward(&*c.params.cast(), &*x.cast(), c.target.cast::<Row>().as_ref(), saved);

        if !c.target.is_null() {
            *c.loss += loss;
        }
        if let Some(y) = c.y.cast::<Row>().as_mut() {
            *y = saved.y;
        }
    })
}

unsafe extern "C" fn segment_backward_input(_: *mut c_void, call: *const dp_segment_call_t) -> dp_status_t {
    caught(|| {
        let c = &*call;
        let (dy, target) = (c.dy.cast::<Row>().as_ref(), c.target.cast::<Row>().as_ref());
        let dx = backward_input(&*c.params.cast(), &mut *c.saved.cast(), |j, y| match dy {
            Some(dy) => dy[j],
            None => c.loss_scale * (y - target.unwrap()[j]),
        });

        if let Some(out) = c.dx.cast::<Row>().as_mut() {
            *out = dx; // overwritten, never added to
        }
    })
}

unsafe extern "C" fn segment_backward_weight(_: *mut c_void, call: *const dp_segment_call_t) -> dp_status_t {
    caught(|| backward_weight(&*(*call).saved.cast(), &mut *(*call).grads.cast()))
}

/// The stages that this rank holds: DualPipe keeps two on each.
type Stages = Vec<*mut dp_stage_t>;

unsafe extern "C" fn build(
    user: *mut c_void,
    _: *const dp_build_context_t,
    _: i32,
    _: i32,
    stage_out: *mut *mut dp_stage_t,
) -> dp_status_t {
    let mut segment: dp_segment_t = sized();
    let mut weights: dp_param_t = std::mem::zeroed();
    let mut sizes: dp_block_sizes_t = sized();
    let mut part: dp_part_t = sized();

    segment.name = b"tanh\0".as_ptr().cast();
    segment.host_forward = Some(segment_forward);
    segment.host_backward_input = Some(segment_backward_input);
    segment.host_backward_weight = Some(segment_backward_weight);
    weights.name = b"W\0".as_ptr().cast();
    weights.count = WIDTH * WIDTH;
    sizes.saved_bytes = std::mem::size_of::<Saved>();
    sizes.param_count = WIDTH * WIDTH;
    sizes.nparams = 1;
    part.nsegments = 1;
    part.segments = &segment;
    part.sizes = &sizes;
    part.param_list = &weights;
    let status = dp_stage_create(&part, 1, WIDTH * dp_ffi_dtype_bytes(DP_F64), DP_F64, stage_out);

    if status >= 0 {
        (*user.cast::<Stages>()).push(*stage_out);
    }
    status
}

// ---- training ----

/// An error of the library, with its message.
fn check(status: dp_status_t) -> Result<(), String> {
    if status >= 0 {
        return Ok(());
    }
    Err(unsafe { CStr::from_ptr(dp_last_error()) }.to_string_lossy().into_owned())
}

/// First values, then gradient descent. Each stage is held twice, by two ranks, and both do the same.
unsafe fn update(pipeline: *mut dp_pipeline_t, step: usize) -> Result<(), String> {
    for c in 0..dp_pipeline_chunks(pipeline) {
        let mut chunk: dp_chunk_view_t = sized();

        check(dp_pipeline_chunk(pipeline, c, &mut chunk))?;
        let w = &mut *chunk.params.cast::<[f64; WIDTH * WIDTH]>();
        let dw = &*chunk.grads.cast::<[f64; WIDTH * WIDTH]>();

        for k in 0..WIDTH * WIDTH {
            w[k] = if step == 0 { first_value(chunk.stage as usize, k) } else { w[k] - 0.5 * dw[k] };
        }
    }
    Ok(())
}

unsafe fn train(group: *mut dp_group_t, pipeline: *mut dp_pipeline_t) -> Result<(), String> {
    let (x, target) = data();
    let inputs: Vec<*const c_void> = x.iter().map(|row| row.as_ptr().cast()).collect();
    let targets: Vec<*const c_void> = target.iter().map(|row| row.as_ptr().cast()).collect();

    for n in 0..=STEPS {
        let mut losses = [0.0; MICROBATCHES];
        let mut step: dp_step_t = sized();

        step.inputs = inputs.as_ptr();
        step.targets = targets.as_ptr();
        step.losses = losses.as_mut_ptr();
        update(pipeline, n)?;
        check(dp_pipeline_step(pipeline, &mut step))?;
        if dp_group_rank(group) == 0 && n % 50 == 0 {
            print(n, &losses);
        }
    }
    Ok(())
}

fn print(n: usize, losses: &[f64; MICROBATCHES]) {
    let sum: f64 = losses.iter().sum();

    println!("step {:3}  loss {:.4}  {:016x}", n, sum / MICROBATCHES as f64, sum.to_bits());
}

/// Two stages, one after the other; gradients are summed as pipeline.h says: by halves.
fn train_serially() {
    let (x, target) = data();
    let mut w = [[[0.0; WIDTH]; WIDTH]; 2];

    for stage in 0..2 {
        for k in 0..WIDTH * WIDTH {
            w[stage][k / WIDTH][k % WIDTH] = first_value(stage, k);
        }
    }
    for n in 0..=STEPS {
        let mut losses = [0.0; MICROBATCHES];
        let mut dw = [[[[0.0; WIDTH]; WIDTH]; 2]; 2]; // by half, then by stage

        for m in 0..MICROBATCHES {
            let mut saved = [Saved::default(); 2];
            let half = &mut dw[m / (MICROBATCHES / 2)];

            forward(&w[0], &x[m], None, &mut saved[0]);
            let y = saved[0].y;

            losses[m] = forward(&w[1], &y, Some(&target[m]), &mut saved[1]);
            let dy = backward_input(&w[1], &mut saved[1], |j, y| (y - target[m][j]) / MICROBATCHES as f64);

            backward_input(&w[0], &mut saved[0], |j, _| dy[j]);
            for stage in 0..2 {
                backward_weight(&saved[stage], &mut half[stage]);
            }
        }
        if n % 50 == 0 {
            print(n, &losses);
        }
        for stage in 0..2 {
            for k in 0..WIDTH * WIDTH {
                let (i, j) = (k / WIDTH, k % WIDTH);

                w[stage][i][j] -= 0.5 * (dw[0][stage][i][j] + dw[1][stage][i][j]);
            }
        }
    }
}

fn main() {
    if std::env::args().nth(1).as_deref() == Some("serial") {
        return train_serially();
    }
    let mut stages = Stages::new();
    let mut pipeline = null_mut();
    let result = unsafe {
        let mut options: dp_pipeline_options_t = sized();

        options.method = b"dualpipe\0".as_ptr().cast();
        options.microbatches = MICROBATCHES as i32;
        options.boundary_bytes = WIDTH * dp_ffi_dtype_bytes(DP_F64);
        options.dtype = DP_F64;
        options.build = Some(build);
        options.user = (&mut stages as *mut Stages).cast();
        let result = check(dp_group_join(null(), &mut options.group))
            .and_then(|_| check(dp_pipeline_open(&options, &mut pipeline)))
            .and_then(|_| train(options.group, pipeline));

        dp_pipeline_close(pipeline);
        for &stage in &stages {
            dp_stage_free(stage);
        }
        dp_group_leave(options.group);
        result
    };

    if let Err(message) = result {
        eprintln!("smallest: {}", message);
        std::process::exit(1);
    }
}
