#include "cli/verbs.h"

namespace nsa::cli {

// Each of these is defined in the file that has its name.
Verb submit_verb();
Verb plan_verb();
Verb follow_verb();
Verb ls_verb();
Verb status_verb();
Verb tensorboard_verb();
Verb gates_verb();
Verb top_verb();
Verb diff_verb();
Verb set_verb();
Verb logs_verb();
Verb events_verb();
Verb ab_verb();
Verb memory_verb();
Verb audit_verb();
Verb plot_verb();
Verb profile_verb();
Verb report_verb();
Verb compare_verb();
Verb export_verb();
Verb sample_verb();
Verb evaluate_verb();
Verb ui_verb();
Verb wait_verb();
Verb stop_verb();
Verb cancel_verb();
Verb resume_verb();
Verb rm_verb();
Verb prune_verb();
Verb ckpt_ls_verb();
Verb ckpt_now_verb();
Verb ckpt_verify_verb();
Verb data_prepare_verb();
Verb data_fetch_verb();
Verb data_adopt_verb();
Verb data_info_verb();
Verb data_push_verb();
Verb data_verify_verb();
Verb daemon_start_verb();
Verb daemon_stop_verb();
Verb daemon_status_verb();
Verb daemon_logs_verb();
Verb node_token_verb();
Verb node_ls_verb();
Verb node_show_verb();
Verb node_drain_verb();
Verb node_undrain_verb();
Verb node_rm_verb();
Verb node_probe_verb();
Verb gpu_ls_verb();
Verb gpu_release_verb();
Verb config_validate_verb();
Verb config_show_verb();
Verb demo_verb();
Verb doctor_verb();
Verb complete_verb();
Verb completion_verb();
Verb version_verb();

const std::vector<Verb>& all_verbs() {
  static const std::vector<Verb> verbs = {
      // clang-format off
      submit_verb(), plan_verb(), follow_verb(), ls_verb(), status_verb(), top_verb(), gates_verb(), logs_verb(), events_verb(), memory_verb(), audit_verb(), plot_verb(), compare_verb(), ab_verb(), diff_verb(), export_verb(), sample_verb(), evaluate_verb(), profile_verb(), report_verb(), tensorboard_verb(), ui_verb(), wait_verb(), set_verb(),
      stop_verb(), cancel_verb(), resume_verb(), rm_verb(), prune_verb(),
      ckpt_ls_verb(), ckpt_now_verb(), ckpt_verify_verb(),
      data_prepare_verb(), data_fetch_verb(), data_adopt_verb(), data_info_verb(), data_push_verb(), data_verify_verb(),
      daemon_start_verb(), daemon_stop_verb(), daemon_status_verb(), daemon_logs_verb(),
      node_token_verb(), node_ls_verb(), node_show_verb(), node_drain_verb(), node_undrain_verb(), node_rm_verb(), node_probe_verb(),
      gpu_ls_verb(), gpu_release_verb(),
      config_validate_verb(), config_show_verb(), demo_verb(), doctor_verb(), completion_verb(), version_verb(), complete_verb(),
      // clang-format on
  };
  return verbs;
}

} // namespace nsa::cli
