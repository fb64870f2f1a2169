// Puts values into Prometheus' metric families, under one prefix and with labels that all share.
#pragma once

#include <prometheus/metric_family.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "engine/counters.h"

namespace mneme {

inline double Count(const Counter& counter) { return static_cast<double>(counter.value()); }

class MetricWriter {
 public:
  using Label = prometheus::ClientMetric::Label;
  using Labels = std::vector<Label>;

  // One family; valid until the writer begins the next one.
  class Family {
   public:
    Family& Value(double value, Labels labels = {}) {
      prometheus::ClientMetric& metric = Add(std::move(labels));
      metric.counter.value = metric.gauge.value = value;
      return *this;
    }
    Family& Value(const Histogram& histogram, Labels labels = {}) {
      prometheus::ClientMetric::Histogram& out = Add(std::move(labels)).histogram;
      const std::vector<int64_t> counts = histogram.counts();
      for (size_t i = 0; i < counts.size(); ++i) {
        out.sample_count += static_cast<uint64_t>(counts[i]);
        // The serializer adds the bucket of +Inf.
        if (i < histogram.bounds().size()) {
          out.bucket.push_back({out.sample_count, histogram.bounds()[i]});
        }
      }
      out.sample_sum = histogram.sum();
      return *this;
    }

   private:
    friend class MetricWriter;
    Family(prometheus::MetricFamily& family, const Labels& common)
        : family_(family), common_(common) {}
    prometheus::ClientMetric& Add(Labels labels) {
      prometheus::ClientMetric& metric = family_.metric.emplace_back();
      metric.label = common_;
      metric.label.insert(metric.label.end(), std::make_move_iterator(labels.begin()),
                          std::make_move_iterator(labels.end()));
      return metric;
    }

    prometheus::MetricFamily& family_;
    const Labels& common_;
  };

  // `out` must outlive the writer. `prefix` is "mneme_".
  MetricWriter(std::string prefix, Labels common, std::vector<prometheus::MetricFamily>& out)
      : prefix_(std::move(prefix)), common_(std::move(common)), out_(out) {}

  Family Counter(absl::string_view name, std::string help) {
    return Begin(name, std::move(help), prometheus::MetricType::Counter);
  }
  Family Gauge(absl::string_view name, std::string help) {
    return Begin(name, std::move(help), prometheus::MetricType::Gauge);
  }
  Family Histogram(absl::string_view name, std::string help) {
    return Begin(name, std::move(help), prometheus::MetricType::Histogram);
  }

 private:
  Family Begin(absl::string_view name, std::string help, prometheus::MetricType type) {
    out_.push_back({absl::StrCat(prefix_, name), std::move(help), type, {}});
    return Family(out_.back(), common_);
  }

  const std::string prefix_;
  const Labels common_;
  std::vector<prometheus::MetricFamily>& out_;
};

}  // namespace mneme
