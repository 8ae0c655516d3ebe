# SPDX-FileCopyrightText: The libdualpipe authors
# SPDX-License-Identifier: MIT
# env.sh: where the kit's programs find what they need. To source, in the kit's folder or with K=FOLDER. PyTorch's wheels hold
# cuBLASLt, cuDNN, NCCL and CUPTI in several folders, which come before what LD_LIBRARY_PATH has. Prints each version.
K=${K:-$PWD}
export DP_TEST_BUILDDIR="$K" DP_TEST_SRCDIR="$K" DUALPIPE_PLUGIN_PATH="$K/.libs"
wheels=$(python3 -c '
import glob, os, nvidia
found = {os.path.dirname(f) for place in nvidia.__path__ for f in glob.glob(place + "/*/lib/*.so*")}
print(":".join(sorted(found)))' 2>/dev/null)
export LD_LIBRARY_PATH="$wheels${wheels:+${LD_LIBRARY_PATH:+:}}${LD_LIBRARY_PATH-}"
python3 - <<'P' || echo "python3 is missing: no library was looked for in its wheels"
import ctypes, os
for name, ask in (("libcuda.so.1", "cuDriverGetVersion"), ("libcublasLt.so.13", "cublasLtGetVersion"), ("libcudnn.so.9", "cudnnGetVersion"),
                  ("libnccl.so.2", "ncclGetVersion"), ("libcupti.so.13", "cuptiGetVersion")):
    try:
        ask = getattr(ctypes.CDLL(name), ask)
        number = ctypes.c_int(0)
        if "Lt" in name or "cudnn" in name:
            ask.restype = ctypes.c_size_t
            number.value = ask()
        else:
            ask(ctypes.byref(number))
        print(name, number.value)
    except (OSError, AttributeError) as error:
        print(name, "MISSING:", str(error)[:100])
P
