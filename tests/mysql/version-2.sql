/*M!999999\- enable the sandbox mode */
/*!40101 SET @saved_cs_client     = @@character_set_client */;
/*!40101 SET character_set_client = utf8mb4 */;
CREATE TABLE `events` (
  `id` int(11) NOT NULL,
  `at` datetime(6) DEFAULT NULL,
  PRIMARY KEY (`id`)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_general_ci;
/*!40101 SET character_set_client = @saved_cs_client */;
INSERT INTO `events` VALUES
(2,'2999-01-01 00:00:00.000000'),
(3,'2020-01-02 00:00:00.000000');
/*!40101 SET @saved_cs_client     = @@character_set_client */;
/*!40101 SET character_set_client = utf8mb4 */;
CREATE TABLE `lapse_job` (
  `job_id` bigint(20) NOT NULL AUTO_INCREMENT,
  `table_id` bigint(20) NOT NULL,
  `active_table_id` bigint(20) DEFAULT NULL,
  `policy_id` bigint(20) NOT NULL,
  `policy_version` int(11) NOT NULL,
  `schema_name` varchar(255) NOT NULL,
  `table_name` varchar(255) NOT NULL,
  `partition_name` varchar(255) NOT NULL,
  `cutoff` datetime(6) NOT NULL,
  `status` varchar(64) NOT NULL,
  `control` varchar(64) DEFAULT NULL,
  `reason` text DEFAULT NULL,
  `path_kind` varchar(64) NOT NULL,
  `path_index` varchar(255) DEFAULT NULL,
  `path_evidence` text NOT NULL,
  `fingerprint` text NOT NULL,
  `created_at` datetime(6) NOT NULL,
  `started_at` datetime(6) DEFAULT NULL,
  `finished_at` datetime(6) DEFAULT NULL,
  `changed_at` datetime(6) NOT NULL,
  `owner_id` varchar(255) DEFAULT NULL,
  `tasks_total` int(11) NOT NULL,
  `behind` float NOT NULL,
  `selected` bigint(20) NOT NULL,
  `deleted` bigint(20) NOT NULL,
  `held` bigint(20) NOT NULL,
  `skipped` bigint(20) NOT NULL,
  `errors` bigint(20) NOT NULL,
  `batches` bigint(20) NOT NULL,
  `summary` text DEFAULT NULL,
  PRIMARY KEY (`job_id`),
  UNIQUE KEY `active_table_id` (`active_table_id`),
  KEY `lapse_job_by_table` (`table_id`,`job_id`)
) ENGINE=InnoDB AUTO_INCREMENT=2 DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;
/*!40101 SET character_set_client = @saved_cs_client */;
INSERT INTO `lapse_job` VALUES
(1,2,NULL,2,1,'','events','','2026-11-16 20:13:49.813418','finished',NULL,NULL,'physical',NULL,'primary key order: no index on the expiry column alone','66131708e1d8b80a','2026-11-16 20:13:49.813418','2026-11-16 20:13:49.944466','2026-11-16 20:13:50.421240','2026-11-16 20:13:50.421240','worker-1',1,0.00000891973,1,1,0,0,0,1,'{\"total_rows\": 1, \"success_rows\": 1, \"error_rows\": 0, \"held_rows\": 0, \"skipped_rows\": 0, \"batches\": 1, \"total_scan_task\": 1, \"finished_scan_task\": 1, \"wall_seconds\": 0.477, \"task_seconds\": 0.368, \"select_seconds\": 0.309, \"delete_seconds\": 0.029, \"waited_seconds\": 0.0, \"other_seconds\": 0.03, \"waits\": {}, \"scan_task_err\": \"\"}');
SET @saved_cs_client     = @@character_set_client;
SET character_set_client = utf8mb4;
/*!50001 CREATE VIEW `lapse_jobs` AS SELECT
 NULL AS `job_id`,
 NULL AS `job_type`,
 NULL AS `description`,
 NULL AS `status`,
 NULL AS `running_status`,
 NULL AS `created`,
 NULL AS `started`,
 NULL AS `finished`,
 NULL AS `fraction_completed`,
 NULL AS `schema_name`,
 NULL AS `table_name`,
 NULL AS `partition_name`,
 NULL AS `cutoff`,
 NULL AS `deleted` */;
SET character_set_client = @saved_cs_client;
/*!40101 SET @saved_cs_client     = @@character_set_client */;
/*!40101 SET character_set_client = utf8mb4 */;
CREATE TABLE `lapse_meta` (
  `name` varchar(64) NOT NULL,
  `value` text NOT NULL,
  PRIMARY KEY (`name`)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;
/*!40101 SET character_set_client = @saved_cs_client */;
INSERT INTO `lapse_meta` VALUES
('catalog_version','2'),
('database_identity','2026-11-16 20:13:48/shop');
/*!40101 SET @saved_cs_client     = @@character_set_client */;
/*!40101 SET character_set_client = utf8mb4 */;
CREATE TABLE `lapse_policy` (
  `policy_id` bigint(20) NOT NULL AUTO_INCREMENT,
  `schema_name` varchar(255) NOT NULL,
  `table_name` varchar(255) NOT NULL,
  `version` int(11) NOT NULL,
  `options` text NOT NULL,
  `reloptions` text NOT NULL,
  `recurrence` varchar(255) NOT NULL,
  `paused` tinyint(1) NOT NULL,
  `source` varchar(64) NOT NULL,
  `fingerprint` text NOT NULL,
  `created_at` datetime(6) NOT NULL,
  `changed_at` datetime(6) NOT NULL,
  `cleared_at` datetime(6) DEFAULT NULL,
  `held` text DEFAULT NULL,
  PRIMARY KEY (`policy_id`),
  UNIQUE KEY `lapse_policy_of_table` (`schema_name`,`table_name`)
) ENGINE=InnoDB AUTO_INCREMENT=4 DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;
/*!40101 SET character_set_client = @saved_cs_client */;
INSERT INTO `lapse_policy` VALUES
(1,'','sessions',1,'{\"expire_after\": \"30 days\"}','{ttl=\'on\',ttl_expire_after=\'30 days\'}','@hourly',0,'statement','f3485522e2537e2e','2026-11-16 20:13:49.019131','2026-11-16 20:13:49.019131',NULL,NULL),
(2,'','events',1,'{\"column\": \"at\", \"interval\": \"1 day\"}','{ttl=\'on\',ttl_expiration_expression=\'\"at\" + INTERVAL \'\'1 day\'\'\'}','@hourly',0,'statement','66131708e1d8b80a','2026-11-16 20:13:49.042753','2026-11-16 20:13:49.042753','2026-11-16 20:13:49.779810',NULL),
(3,'','mails',1,'{\"expression\": \"CASE WHEN keep = 1 THEN NULL ELSE at END\", \"pause\": \"on\"}','{ttl=\'on\',ttl_expiration_expression=\'CASE WHEN keep = 1 THEN NULL ELSE at END\',ttl_pause=\'on\'}','@hourly',1,'statement','b68958aac4bb4486','2026-11-16 20:13:49.469568','2026-11-16 20:13:49.469568',NULL,NULL);
/*!40101 SET @saved_cs_client     = @@character_set_client */;
/*!40101 SET character_set_client = utf8mb4 */;
CREATE TABLE `lapse_policy_version` (
  `policy_id` bigint(20) NOT NULL,
  `version` int(11) NOT NULL,
  `options` text NOT NULL,
  `changed_at` datetime(6) NOT NULL,
  PRIMARY KEY (`policy_id`,`version`)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;
/*!40101 SET character_set_client = @saved_cs_client */;
INSERT INTO `lapse_policy_version` VALUES
(1,1,'{\"expire_after\": \"30 days\"}','2026-11-16 20:13:49.019131'),
(2,1,'{\"column\": \"at\", \"interval\": \"1 day\"}','2026-11-16 20:13:49.042753'),
(3,1,'{\"expression\": \"CASE WHEN keep = 1 THEN NULL ELSE at END\", \"pause\": \"on\"}','2026-11-16 20:13:49.469568');
/*!40101 SET @saved_cs_client     = @@character_set_client */;
/*!40101 SET character_set_client = utf8mb4 */;
CREATE TABLE `lapse_rate` (
  `name` varchar(255) NOT NULL,
  `free_at_us` bigint(20) NOT NULL,
  PRIMARY KEY (`name`)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;
/*!40101 SET character_set_client = @saved_cs_client */;
SET @saved_cs_client     = @@character_set_client;
SET character_set_client = utf8mb4;
/*!50001 CREATE VIEW `lapse_reloptions` AS SELECT
 NULL AS `relname`,
 NULL AS `reloptions` */;
SET character_set_client = @saved_cs_client;
SET @saved_cs_client     = @@character_set_client;
SET character_set_client = utf8mb4;
/*!50001 CREATE VIEW `lapse_schedules` AS SELECT
 NULL AS `id`,
 NULL AS `label`,
 NULL AS `schedule_status`,
 NULL AS `next_run`,
 NULL AS `state`,
 NULL AS `recurrence`,
 NULL AS `jobsrunning`,
 NULL AS `created`,
 NULL AS `schema_name`,
 NULL AS `table_name`,
 NULL AS `partition_name` */;
SET character_set_client = @saved_cs_client;
/*!40101 SET @saved_cs_client     = @@character_set_client */;
/*!40101 SET character_set_client = utf8mb4 */;
CREATE TABLE `lapse_setting` (
  `name` varchar(64) NOT NULL,
  `value` text NOT NULL,
  `changed_at` datetime(6) NOT NULL,
  PRIMARY KEY (`name`)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;
/*!40101 SET character_set_client = @saved_cs_client */;
INSERT INTO `lapse_setting` VALUES
('lapse_mode','fast','2026-11-16 20:13:50.470091');
/*!40101 SET @saved_cs_client     = @@character_set_client */;
/*!40101 SET character_set_client = utf8mb4 */;
CREATE TABLE `lapse_table` (
  `table_id` bigint(20) NOT NULL AUTO_INCREMENT,
  `policy_id` bigint(20) NOT NULL,
  `partition_name` varchar(255) NOT NULL,
  `next_run_at` datetime(6) DEFAULT NULL,
  `statistics` text DEFAULT NULL,
  `trouble` text DEFAULT NULL,
  PRIMARY KEY (`table_id`),
  UNIQUE KEY `lapse_table_of_policy` (`policy_id`,`partition_name`)
) ENGINE=InnoDB AUTO_INCREMENT=4 DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;
/*!40101 SET character_set_client = @saved_cs_client */;
INSERT INTO `lapse_table` VALUES
(1,1,'',NULL,NULL,NULL),
(2,2,'','2026-11-16 21:00:00.000000',NULL,NULL),
(3,3,'',NULL,NULL,NULL);
SET @saved_cs_client     = @@character_set_client;
SET character_set_client = utf8mb4;
/*!50001 CREATE VIEW `lapse_table_status` AS SELECT
 NULL AS `table_id`,
 NULL AS `parent_table_id`,
 NULL AS `table_statistics`,
 NULL AS `last_job_id`,
 NULL AS `last_job_start_time`,
 NULL AS `last_job_finish_time`,
 NULL AS `last_job_ttl_expire`,
 NULL AS `last_job_summary`,
 NULL AS `current_job_id`,
 NULL AS `current_job_owner_id`,
 NULL AS `current_job_owner_addr`,
 NULL AS `current_job_owner_hb_time`,
 NULL AS `current_job_start_time`,
 NULL AS `current_job_ttl_expire`,
 NULL AS `current_job_state`,
 NULL AS `current_job_status`,
 NULL AS `current_job_status_update_time` */;
SET character_set_client = @saved_cs_client;
/*!40101 SET @saved_cs_client     = @@character_set_client */;
/*!40101 SET character_set_client = utf8mb4 */;
CREATE TABLE `lapse_task` (
  `task_id` bigint(20) NOT NULL AUTO_INCREMENT,
  `job_id` bigint(20) NOT NULL,
  `ordinal` int(11) NOT NULL,
  `range_start` text DEFAULT NULL,
  `range_end` text DEFAULT NULL,
  `position` text DEFAULT NULL,
  `sweep` int(11) NOT NULL,
  `status` varchar(64) NOT NULL,
  `owner_id` varchar(255) DEFAULT NULL,
  `heartbeat_at` datetime(6) DEFAULT NULL,
  `fence` int(11) NOT NULL,
  `selected` bigint(20) NOT NULL,
  `deleted` bigint(20) NOT NULL,
  `held` bigint(20) NOT NULL,
  `skipped` bigint(20) NOT NULL,
  `errors` bigint(20) NOT NULL,
  `batches` bigint(20) NOT NULL,
  `worked_seconds` float NOT NULL,
  `locked_seconds` float NOT NULL,
  `lasted_seconds` float NOT NULL,
  `waited_seconds` float NOT NULL,
  `pause_reason` text DEFAULT NULL,
  `waits` text DEFAULT NULL,
  `last_error` text DEFAULT NULL,
  PRIMARY KEY (`task_id`),
  UNIQUE KEY `lapse_task_of_job` (`job_id`,`ordinal`)
) ENGINE=InnoDB AUTO_INCREMENT=2 DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;
/*!40101 SET character_set_client = @saved_cs_client */;
/*!40101 SET @saved_cs_client     = @@character_set_client */;
/*!40101 SET character_set_client = utf8mb4 */;
CREATE TABLE `lapse_worker` (
  `worker_id` varchar(255) NOT NULL,
  `address` varchar(255) NOT NULL,
  `version` varchar(64) NOT NULL,
  `started_at` datetime(6) NOT NULL,
  `heartbeat_at` datetime(6) NOT NULL,
  `state` text NOT NULL,
  PRIMARY KEY (`worker_id`)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;
/*!40101 SET character_set_client = @saved_cs_client */;
/*!40101 SET @saved_cs_client     = @@character_set_client */;
/*!40101 SET character_set_client = utf8mb4 */;
CREATE TABLE `mails` (
  `id` int(11) NOT NULL,
  `at` datetime(6) DEFAULT NULL,
  `keep` int(11) DEFAULT NULL,
  PRIMARY KEY (`id`)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_general_ci;
/*!40101 SET character_set_client = @saved_cs_client */;
INSERT INTO `mails` VALUES
(1,'2020-01-01 00:00:00.000000',1),
(2,'2020-01-01 00:00:00.000000',0);
/*!40101 SET @saved_cs_client     = @@character_set_client */;
/*!40101 SET character_set_client = utf8mb4 */;
CREATE TABLE `sessions` (
  `id` int(11) NOT NULL,
  `body` varchar(9) DEFAULT NULL,
  `crdb_internal_expiration` datetime(6) INVISIBLE DEFAULT (utc_timestamp(6) + interval 30 day),
  PRIMARY KEY (`id`)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_general_ci;
/*!40101 SET character_set_client = @saved_cs_client */;
INSERT INTO `sessions` (`id`, `body`, `crdb_internal_expiration`) VALUES (1,'x','2026-12-16 20:13:49.497973');
/*!50003 SET @saved_cs_client      = @@character_set_client */ ;
/*!50003 SET @saved_cs_results     = @@character_set_results */ ;
/*!50003 SET @saved_col_connection = @@collation_connection */ ;
/*!50003 SET character_set_client  = utf8mb4 */ ;
/*!50003 SET character_set_results = utf8mb4 */ ;
/*!50003 SET collation_connection  = utf8mb4_general_ci */ ;
/*!50003 SET @saved_sql_mode       = @@sql_mode */ ;
/*!50003 SET sql_mode              = 'STRICT_TRANS_TABLES,ERROR_FOR_DIVISION_BY_ZERO,NO_ENGINE_SUBSTITUTION' */ ;
DELIMITER ;;
/*!50003 CREATE*/ /*!50017 DEFINER=`root`@`127.0.0.1`*/ /*!50003 TRIGGER `lapse_sessions_update` BEFORE UPDATE ON `sessions` FOR EACH ROW SET NEW.`crdb_internal_expiration` = if(NEW.`crdb_internal_expiration` <=> OLD.`crdb_internal_expiration` AND OLD.`crdb_internal_expiration` < (utc_timestamp(6) + INTERVAL 30 DAY), (utc_timestamp(6) + INTERVAL 30 DAY), NEW.`crdb_internal_expiration`)
*/;;
DELIMITER ;
/*!50003 SET sql_mode              = @saved_sql_mode */ ;
/*!50003 SET character_set_client  = @saved_cs_client */ ;
/*!50003 SET character_set_results = @saved_cs_results */ ;
/*!50003 SET collation_connection  = @saved_col_connection */ ;
/*!50001 DROP VIEW IF EXISTS `lapse_jobs`*/;
/*!50001 SET @saved_cs_client          = @@character_set_client */;
/*!50001 SET @saved_cs_results         = @@character_set_results */;
/*!50001 SET @saved_col_connection     = @@collation_connection */;
/*!50001 SET character_set_client      = utf8mb4 */;
/*!50001 SET character_set_results     = utf8mb4 */;
/*!50001 SET collation_connection      = utf8mb4_general_ci */;
/*!50001 CREATE ALGORITHM=UNDEFINED */
/*!50013 DEFINER=`root`@`127.0.0.1` SQL SECURITY DEFINER */
/*!50001 VIEW `lapse_jobs` AS select `j`.`job_id` AS `job_id`,'ROW LEVEL TTL' AS `job_type`,concat('ttl for ',`j`.`table_name`) AS `description`,`j`.`status` AS `status`,`j`.`reason` AS `running_status`,`j`.`created_at` AS `created`,`j`.`started_at` AS `started`,`j`.`finished_at` AS `finished`,case when `j`.`finished_at` is not null or `j`.`tasks_total` = 0 then 1.0 else (select count(0) from `lapse_task` `k` where `k`.`job_id` = `j`.`job_id` and `k`.`status` = 'finished') * 1.0 / `j`.`tasks_total` end AS `fraction_completed`,`j`.`schema_name` AS `schema_name`,`j`.`table_name` AS `table_name`,`j`.`partition_name` AS `partition_name`,`j`.`cutoff` AS `cutoff`,case when `j`.`finished_at` is not null then `j`.`deleted` else (select coalesce(sum(`k`.`deleted`),0) from `lapse_task` `k` where `k`.`job_id` = `j`.`job_id`) end AS `deleted` from `lapse_job` `j` */;
/*!50001 SET character_set_client      = @saved_cs_client */;
/*!50001 SET character_set_results     = @saved_cs_results */;
/*!50001 SET collation_connection      = @saved_col_connection */;
/*!50001 DROP VIEW IF EXISTS `lapse_reloptions`*/;
/*!50001 SET @saved_cs_client          = @@character_set_client */;
/*!50001 SET @saved_cs_results         = @@character_set_results */;
/*!50001 SET @saved_col_connection     = @@collation_connection */;
/*!50001 SET character_set_client      = utf8mb4 */;
/*!50001 SET character_set_results     = utf8mb4 */;
/*!50001 SET collation_connection      = utf8mb4_general_ci */;
/*!50001 CREATE ALGORITHM=UNDEFINED */
/*!50013 DEFINER=`root`@`127.0.0.1` SQL SECURITY DEFINER */
/*!50001 VIEW `lapse_reloptions` AS select `p`.`table_name` AS `relname`,`p`.`reloptions` AS `reloptions` from `lapse_policy` `p` */;
/*!50001 SET character_set_client      = @saved_cs_client */;
/*!50001 SET character_set_results     = @saved_cs_results */;
/*!50001 SET collation_connection      = @saved_col_connection */;
/*!50001 DROP VIEW IF EXISTS `lapse_schedules`*/;
/*!50001 SET @saved_cs_client          = @@character_set_client */;
/*!50001 SET @saved_cs_results         = @@character_set_results */;
/*!50001 SET @saved_col_connection     = @@collation_connection */;
/*!50001 SET character_set_client      = utf8mb4 */;
/*!50001 SET character_set_results     = utf8mb4 */;
/*!50001 SET collation_connection      = utf8mb4_general_ci */;
/*!50001 CREATE ALGORITHM=UNDEFINED */
/*!50013 DEFINER=`root`@`127.0.0.1` SQL SECURITY DEFINER */
/*!50001 VIEW `lapse_schedules` AS select `t`.`table_id` AS `id`,concat('row-level-ttl-',`p`.`table_name`) AS `label`,case when `p`.`paused` then 'PAUSED' else 'ACTIVE' end AS `schedule_status`,`t`.`next_run_at` AS `next_run`,`t`.`trouble` AS `state`,`p`.`recurrence` AS `recurrence`,(select count(0) from `lapse_job` `j` where `j`.`active_table_id` = `t`.`table_id`) AS `jobsrunning`,`p`.`created_at` AS `created`,`p`.`schema_name` AS `schema_name`,`p`.`table_name` AS `table_name`,`t`.`partition_name` AS `partition_name` from (`lapse_table` `t` join `lapse_policy` `p` on(`p`.`policy_id` = `t`.`policy_id`)) */;
/*!50001 SET character_set_client      = @saved_cs_client */;
/*!50001 SET character_set_results     = @saved_cs_results */;
/*!50001 SET collation_connection      = @saved_col_connection */;
/*!50001 DROP VIEW IF EXISTS `lapse_table_status`*/;
/*!50001 SET @saved_cs_client          = @@character_set_client */;
/*!50001 SET @saved_cs_results         = @@character_set_results */;
/*!50001 SET @saved_col_connection     = @@collation_connection */;
/*!50001 SET character_set_client      = utf8mb4 */;
/*!50001 SET character_set_results     = utf8mb4 */;
/*!50001 SET collation_connection      = utf8mb4_general_ci */;
/*!50001 CREATE ALGORITHM=UNDEFINED */
/*!50013 DEFINER=`root`@`127.0.0.1` SQL SECURITY DEFINER */
/*!50001 VIEW `lapse_table_status` AS select `t`.`table_id` AS `table_id`,case when `t`.`partition_name` = '' then `t`.`table_id` else `t`.`policy_id` end AS `parent_table_id`,`t`.`statistics` AS `table_statistics`,`l`.`job_id` AS `last_job_id`,`l`.`created_at` AS `last_job_start_time`,`l`.`finished_at` AS `last_job_finish_time`,`l`.`cutoff` AS `last_job_ttl_expire`,`l`.`summary` AS `last_job_summary`,`c`.`job_id` AS `current_job_id`,`c`.`owner_id` AS `current_job_owner_id`,`w`.`address` AS `current_job_owner_addr`,`w`.`heartbeat_at` AS `current_job_owner_hb_time`,`c`.`created_at` AS `current_job_start_time`,`c`.`cutoff` AS `current_job_ttl_expire`,`c`.`reason` AS `current_job_state`,`c`.`status` AS `current_job_status`,`c`.`changed_at` AS `current_job_status_update_time` from (((`lapse_table` `t` left join `lapse_job` `l` on(`l`.`job_id` = (select max(`f`.`job_id`) from `lapse_job` `f` where `f`.`table_id` = `t`.`table_id` and `f`.`status` = 'finished'))) left join `lapse_job` `c` on(`c`.`job_id` = (select max(`g`.`job_id`) from `lapse_job` `g` where `g`.`table_id` = `t`.`table_id` and `g`.`status` <> 'finished' and `g`.`job_id` > coalesce(`l`.`job_id`,0)))) left join `lapse_worker` `w` on(`w`.`worker_id` = `c`.`owner_id`)) */;
/*!50001 SET character_set_client      = @saved_cs_client */;
/*!50001 SET character_set_results     = @saved_cs_results */;
/*!50001 SET collation_connection      = @saved_col_connection */;
