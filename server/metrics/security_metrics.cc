// Metrics of what guards the ports. No label names a key or its owner.
#include <utility>

#include "absl/time/time.h"
#include "server/metrics/metrics.h"

namespace mneme {

void WriteSecurityMetrics(const Security& security, const ServerStats& stats, MetricWriter& out) {
  const Authenticator& authenticator = security.authenticator();
  out.Counter("auth_refusals_total",
              "Calls of both protocols refused for want of a known key or of rights.")
      .Value(static_cast<double>(authenticator.unauthenticated()), {{"code", "UNAUTHENTICATED"}})
      .Value(static_cast<double>(authenticator.not_allowed()), {{"code", "PERMISSION_DENIED"}});

  const std::pair<const char*, const ReloadCounts&> files[] = {{"config", stats.config_reloads},
                                                               {"keys", security.key_reloads()},
                                                               {"tls", security.tls_reloads()}};
  auto reloads = out.Counter(
      "reloads_total",
      "Times that the configuration and the files of keys and of TLS were read again, by outcome.");
  for (const auto& [file, counts] : files) {
    reloads.Value(static_cast<double>(counts.ok.value()), {{"file", file}, {"outcome", "ok"}})
        .Value(static_cast<double>(counts.failed.value()), {{"file", file}, {"outcome", "failed"}});
  }
  auto last = out.Gauge("last_reload_successful",
                        "0 after files were read that were not in order: the server goes on with "
                        "what they said before.");
  for (const auto& [file, counts] : files) last.Value(counts.last_ok ? 1 : 0, {{"file", file}});
  // As Prometheus and Alertmanager have them of their own.
  out.Gauge("config_last_reload_successful",
            "0 after the file of --config was read again and was not in order.")
      .Value(stats.config_reloads.last_ok ? 1 : 0);
  out.Gauge("config_last_reload_success_timestamp_seconds",
            "When the configuration was last read without an error, since the Unix epoch in "
            "seconds.")
      .Value(static_cast<double>(stats.config_reloads.last_success_nanos.load()) * 1e-9);

  if (security.tls() == nullptr) return;
  out.Gauge("tls_certificate_expiry_timestamp_seconds",
            "When the certificate in use expires, since the Unix epoch in seconds.")
      .Value(absl::ToDoubleSeconds(security.tls()->current()->expires - absl::UnixEpoch()));
}

}  // namespace mneme
