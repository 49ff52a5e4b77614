// A GPU on a processor: blocks, threads that take turns, and what it does not forgive.
#include <csetjmp>
#include <csignal>
#include <memory>
#include <mutex>
#include <random>
#include <ucontext.h>
#include <utility>
#include <vector>

#include "device.h"

dim3 threadIdx, blockIdx, blockDim, gridDim;

namespace {

constexpr std::size_t STACK = 1 << 16; // bytes of a thread
constexpr int ENDED = 0;               // in place of the line that a thread waits in

struct Thread {
  dim3 index;
  int line = ENDED;
  bool begun = false;
  ucontext_t start;
  std::jmp_buf here;
  std::unique_ptr<char[]> stack{new char[STACK]};
};

struct Array {
  unsigned char *at;
  std::size_t size, band;
};

const char *fault = nullptr, *said = nullptr; // the first since somebody asked, and what they were told
std::vector<Array> shared;                    // of the block that runs
std::vector<Thread> threads;
std::jmp_buf turn; // where the next thread gets its turn
Thread *running;
const std::function<void()> *work;

void fails(const char *text) {
  if (!fault) fault = text;
}

void stop(int line) {
  running->line = line;
  if (!_setjmp(running->here)) _longjmp(turn, 1);
}

void live() {
  for (;;) {
    (*work)();
    stop(ENDED);
  }
}

void resume(Thread &thread) {
  running = &thread;
  threadIdx = thread.index;
  if (_setjmp(turn)) return;
  if (thread.begun) _longjmp(thread.here, 1);
  thread.begun = true;
  setcontext(&thread.start);
}

// Threads of that shape that have not begun.
std::vector<Thread *> gather(dim3 shape) {
  threads.resize(std::max<std::size_t>(threads.size(), shape.x * shape.y * shape.z));
  std::vector<Thread *> found;
  for (unsigned z = 0; z < shape.z; ++z)
    for (unsigned y = 0; y < shape.y; ++y)
      for (unsigned x = 0; x < shape.x; ++x) {
        Thread &thread = threads[found.size()];
        thread.index = dim3(x, y, z);
        thread.begun = false;
        getcontext(&thread.start);
        thread.start.uc_stack.ss_sp = thread.stack.get();
        thread.start.uc_stack.ss_size = STACK;
        thread.start.uc_link = nullptr;
        makecontext(&thread.start, live, 0);
        found.push_back(&thread);
      }
  return found;
}

// What the thread does that a GPU would not: it does not go on.
[[noreturn]] void stops(const char *text) {
  fails(text);
  _longjmp(turn, 1);
}

// While kernels run, memory that is nobody's is theirs to answer for.
class Watch {
public:
  Watch() {
    struct sigaction watching = {};
    watching.sa_handler = [](int) { stops("an illegal memory access"); };
    watching.sa_flags = SA_NODEFER; // the handler does not return
    sigaction(SIGSEGV, &watching, &before);
  }
  ~Watch() { sigaction(SIGSEGV, &before, nullptr); }

private:
  struct sigaction before;
};

// From barrier to barrier. All threads have to wait in the same line, which is what CUDA asks for.
void run_block(std::vector<Thread *> &order, std::minstd_rand &random) {
  shared.clear();
  int line;
  do {
    std::shuffle(order.begin(), order.end(), random);
    for (Thread *thread : order) resume(*thread);
    if (fault) return;
    line = order.front()->line;
    for (const Thread *thread : order)
      if (thread->line != line) return fails("threads of a block wait at a barrier that others do not reach");
  } while (line != ENDED);
  for (const Array &each : shared)
    for (std::size_t i = each.size - each.band; i < each.size; ++i)
      if (each.at[i] != 0xff) return fails("something was written behind an array of shared memory");
}

} // namespace

void device::run(dim3 blocks, dim3 shape, const std::function<void()> &kernel) {
  static std::mutex one_at_a_time;
  const std::lock_guard<std::mutex> guard(one_at_a_time);
  const Watch watch;
  if (!blocks.x || blocks.y != 1 || blocks.z != 1 || !(shape.x * shape.y * shape.z) || shape.x * shape.y * shape.z > 1024)
    return fails("invalid configuration argument");
  work = &kernel, gridDim = blocks, blockDim = shape;
  std::minstd_rand random(blocks.x); // the same order for the same launch
  std::vector<Thread *> order = gather(shape);
  std::vector<unsigned> indices(blocks.x);
  for (unsigned i = 0; i < blocks.x; ++i) indices[i] = i;
  std::shuffle(indices.begin(), indices.end(), random);
  for (const unsigned each : indices) {
    if (fault) return;
    blockIdx = dim3(each, 0, 0);
    run_block(order, random);
  }
}

void device::wait(int line) { stop(line); }

void device::share(void *array, std::size_t size, std::size_t band) {
  for (const Array &each : shared)
    if (each.at == array) return;
  std::memset(array, 0xff, size);
  shared.push_back({static_cast<unsigned char *>(array), size, band});
}

cudaError_t cudaGetLastError() {
  said = std::exchange(fault, nullptr);
  return said ? cudaErrorLaunchFailure : cudaSuccess;
}

const char *cudaGetErrorString(cudaError_t error) { return error == cudaSuccess ? "no error" : said; }

// What compilers call, asked to check alignment, where a GPU would stop: addresses that are no multiple of sixteen bytes.
extern "C" void __ubsan_handle_type_mismatch_v1(void *, void *) { stops("misaligned address"); }
