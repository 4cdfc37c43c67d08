#include "dsv4/server/engine_thread.h"

#include <algorithm>

#include "dsv4/base/error.h"
#include "dsv4/base/thread.h"

namespace dsv4 {

void EngineThread::Job::on_start(RequestId, int64_t cached_tokens) {
  events->push_back(
      {.job = id, .kind = EngineEvent::Kind::kStarted, .cached_tokens = cached_tokens});
}

void EngineThread::Job::on_prompt_token(RequestId, const Sampled& token) {
  events->push_back({.job = id, .kind = EngineEvent::Kind::kPromptToken, .token = token});
}

void EngineThread::Job::on_drafts(RequestId, const DraftCounts& drafts) {
  events->push_back({.job = id, .kind = EngineEvent::Kind::kDrafts, .drafts = drafts});
}

void EngineThread::Job::on_token(RequestId, const Sampled& token) {
  events->push_back({.job = id, .kind = EngineEvent::Kind::kToken, .token = token});
}

void EngineThread::Job::on_finish(RequestId, Finish why) {
  finished = true;
  events->push_back({.job = id, .kind = EngineEvent::Kind::kFinished, .finish = why});
}

EngineThread::EngineThread(Loader loader, Deliver deliver)
    : deliver_(std::move(deliver)),
      thread_(start_thread("the thread of the engine",
                           [this, loader = std::move(loader)] { run(loader); })) {
}

EngineThread::~EngineThread() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

JobId EngineThread::submit(std::vector<int32_t> prompt, GenerateParams params,
                           const QueueInfo& info) {
  auto job = std::make_unique<Job>();
  job->prompt = std::move(prompt);
  job->params = std::move(params);
  job->params.priority = info.priority;  // also the order of preemption
  const std::lock_guard lock(mutex_);
  const auto id = static_cast<JobId>(next_job_++);
  job->id = id;
  job->part_of = info.request;
  const auto tokens = static_cast<int64_t>(job->prompt.size());
  order_.push({.id = static_cast<uint64_t>(id),
               .key = info.key,
               .request = info.request,
               .priority = info.priority,
               .prompt_tokens = tokens,
               .answer_tokens = job->params.max_new_tokens},
              std::chrono::steady_clock::now());
  queue_[id] = std::move(job);
  state_.queued_tokens += tokens;
  state_.queued = queue_.size();
  wake_.notify_all();
  return id;
}

// With the mutex held.
std::unique_ptr<EngineThread::Job> EngineThread::take_from_queue(JobId id) {
  auto job = std::move(queue_.extract(id).mapped());
  state_.queued_tokens -= static_cast<int64_t>(job->prompt.size());
  state_.queued = queue_.size();
  return job;
}

void EngineThread::cancel(JobId job) {
  const std::lock_guard lock(mutex_);
  cancelled_.push_back(job);
  wake_.notify_all();
}

void EngineThread::drop_prefixes() {
  const std::lock_guard lock(mutex_);
  drop_prefixes_ = true;
  wake_.notify_all();
}

void EngineThread::drop_if_wanted() {
  {
    const std::lock_guard lock(mutex_);
    if (!std::exchange(drop_prefixes_, false)) return;
  }
  engine_->drop_prefixes();
}

size_t EngineThread::queued_of(const std::string& key) const {
  const std::lock_guard lock(mutex_);
  return order_.count(key);
}

EngineThread::State EngineThread::state() const {
  const std::lock_guard lock(mutex_);
  State state = state_;
  if (in_step_) {
    state.seconds_in_step =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - step_begin_).count();
  }
  return state;
}

void EngineThread::run(const Loader& loader) {
  if (load(loader)) serve();
  running_.clear();
  engine_.reset();
}

bool EngineThread::load(const Loader& loader) {
  std::string error;
  try {
    engine_ = loader();
    std::vector<EngineEvent> ignored;
    Job canary;
    canary.events = &ignored;
    const std::vector<int32_t> prompt = {0};
    engine_->submit(prompt, {.sampling = {.temperature = 0}, .max_new_tokens = 1}, canary);
    while (!canary.finished) engine_->step();
  } catch (const std::exception& caught) {
    error = caught.what();
  }
  {
    const std::lock_guard lock(mutex_);
    state_.ready = error.empty();
    state_.load_failed = !error.empty();
    state_.error = error;
    if (engine_) state_.stats = engine_->stats();
  }
  if (engine_) refresh_device();
  deliver_({});
  return error.empty();
}

void EngineThread::serve() {
  while (wait_for_work()) {
    std::vector<EngineEvent> events;
    apply_cancellations(events);
    drop_if_wanted();
    admit(events);
    // A first step may take long: its requests no longer wait.
    if (!running_.empty() && !events.empty()) deliver_(std::exchange(events, {}));
    if (!running_.empty()) step(events);
    {
      const std::lock_guard lock(mutex_);
      state_.running = running_.size();
      state_.stats = engine_->stats();
    }
    if (!events.empty()) deliver_(std::move(events));
    refresh_device();
  }
}

// False when the thread has to end. While the engine rests, its disk tier may still write.
bool EngineThread::wait_for_work() {
  constexpr std::chrono::milliseconds kRefresh{250};  // of the numbers that state() gives
  std::unique_lock lock(mutex_);
  const auto has_work = [this] {
    return stopping_ || drop_prefixes_ || !queue_.empty() || !cancelled_.empty() ||
           !running_.empty();
  };
  while (!wake_.wait_for(lock, kRefresh, has_work)) {
    state_.stats = engine_->stats();
    lock.unlock();
    check_ranks();
    refresh_device();
    lock.lock();
  }
  return !stopping_;
}

// A rank that ends while the engine rests is noticed here, not by the next request.
void EngineThread::check_ranks() {
  if (state_.broken) return;
  try {
    engine_->check_ranks();
  } catch (const std::exception& caught) {
    std::vector<EngineEvent> events;
    fail_all(events, caught.what());
    deliver_(std::move(events));
  }
}

// Every other second: the driver is asked without the mutex, and the device is waited for.
void EngineThread::refresh_device() {
  constexpr std::chrono::seconds kEvery{2};
  const auto now = std::chrono::steady_clock::now();
  if (now < next_refresh_) return;
  next_refresh_ = now + kEvery;
  MemoryUse memory;
  ExpertStats expert_stats;
  std::vector<RankStats> rank_stats;
  try {
    memory = engine_->device_memory();
    expert_stats = engine_->expert_stats();
    rank_stats = engine_->rank_stats();
  } catch (const std::exception&) {  // the device is broken: the next step says how
    return;
  }
  const std::lock_guard lock(mutex_);
  state_.device_memory = memory;
  state_.experts = std::move(expert_stats);
  state_.ranks = std::move(rank_stats);
}

void EngineThread::apply_cancellations(std::vector<EngineEvent>& events) {
  const std::lock_guard lock(mutex_);
  for (const JobId id : std::exchange(cancelled_, {})) {
    if (const auto running = running_.find(id); running != running_.end()) {
      engine_->cancel(running->second->request);
      continue;
    }
    if (!order_.erase(static_cast<uint64_t>(id))) continue;
    take_from_queue(id);
    events.push_back(
        {.job = id, .kind = EngineEvent::Kind::kFinished, .finish = Finish::kCancelled});
  }
}

// The one that begins next; null: none may.
std::unique_ptr<EngineThread::Job> EngineThread::next_job() {
  JobQueue::Places places{.count = static_cast<size_t>(engine_->limits().max_sequences)};
  if (running_.size() >= places.count) return nullptr;
  for (const auto& [id, job] : running_) ++places.taken[job->part_of];
  const std::lock_guard lock(mutex_);
  const auto next = order_.pop(std::chrono::steady_clock::now(), places);
  return next ? take_from_queue(static_cast<JobId>(*next)) : nullptr;
}

void EngineThread::admit(std::vector<EngineEvent>& events) {
  while (std::unique_ptr<Job> job = next_job()) {
    const JobId id = job->id;
    if (state_.broken) {
      events.push_back({.job = id, .kind = EngineEvent::Kind::kFailed});
      continue;
    }
    try {
      job->request = engine_->submit(job->prompt, job->params, *job);
    } catch (const std::exception&) {  // the server has checked what it sends
      events.push_back({.job = id, .kind = EngineEvent::Kind::kFailed});
      continue;
    }
    events.push_back({.job = id, .kind = EngineEvent::Kind::kStarted});
    running_[id] = std::move(job);
    const std::lock_guard lock(mutex_);
    state_.running = running_.size();
  }
}

void EngineThread::step(std::vector<EngineEvent>& events) {
  {
    const std::lock_guard lock(mutex_);
    in_step_ = true;
    step_begin_ = std::chrono::steady_clock::now();
  }
  for (const auto& [id, job] : running_) job->events = &events;
  std::string error;
  try {
    engine_->step();
  } catch (const std::exception& caught) {
    error = caught.what();
  }
  {
    const std::lock_guard lock(mutex_);
    in_step_ = false;
  }
  std::erase_if(running_, [](const auto& entry) { return entry.second->finished; });
  if (!error.empty()) fail_all(events, error);
}

// A step that threw may have left caches half-written: this engine serves no more.
void EngineThread::fail_all(std::vector<EngineEvent>& events, const std::string& error) {
  for (const auto& [id, job] : running_)
    events.push_back({.job = id, .kind = EngineEvent::Kind::kFailed});
  running_.clear();
  const std::lock_guard lock(mutex_);
  state_.broken = true;
  state_.ready = false;
  state_.error = error;
}

}  // namespace dsv4
